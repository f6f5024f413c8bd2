//! The contexts of a batch as flat token sequences: the tokens that a model read and generated.

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;

use super::{Batch, lists};
use crate::Result;

/// The contexts of all draws, in the order of the draws and of the steps in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contexts {
    /// Token ids of all contexts, each from its root on.
    pub tokens: Vec<i32>,
    /// Begin of each context in `tokens`, and the number of tokens last.
    pub offsets: Vec<i64>,
    /// The draw of each context.
    pub draws: Vec<i64>,
    /// The steps of context `k` are the rows `steps[k]..steps[k + 1]` of the step level.
    pub steps: Vec<i64>,
    /// Number of tokens of its context before the action of each step; -1 if the action has no tokens.
    pub begins: Vec<i64>,
}

impl Batch {
    /// Return the contexts of all draws. The last context of a draw extends to the end of the trajectory, the contexts
    /// before it to the end of their last action.
    pub fn contexts(&self) -> Result<Contexts> {
        let layout = &self.layout;
        let list = lists(self.nodes(), "tokens")?;
        let first = list.value_offsets()[0] as usize;
        let tokens = &list.values().as_primitive::<Int32Type>().values()[first..];
        let mut found = Contexts { offsets: vec![0], steps: vec![0], ..Contexts::default() };
        for draw in 0..self.num_draws() {
            for (context, steps) in layout.contexts(draw) {
                for node in layout.path(context) {
                    let from = layout.node_offsets()[node.row] as usize;
                    found.tokens.extend_from_slice(&tokens[from..from + node.used]);
                }
                found.offsets.push(found.tokens.len() as i64);
                found.draws.push(draw as i64);
                found.steps.push(steps.end as i64);
            }
        }
        let actions = layout.token_offsets.windows(2);
        let begin = |of: &[i64]| if of[0] < of[1] { i64::from(layout.actions.at(of[0] as usize).position) } else { -1 };
        found.begins = actions.map(begin).collect();
        Ok(found)
    }
}
