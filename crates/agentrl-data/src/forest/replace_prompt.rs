//! Copy the actions of a trajectory after another prompt.

use agentrl_compute::hash::hash_bytes;

use super::fork_operations::ForkPoint;
use super::{BlobHash, Forest, Handle, NewNode, handle, split};
use crate::schema::Kind;
use crate::{Error, Result};

impl Forest {
    /// Create a trajectory from another prompt and the path of `trajectory` from its first action on. Use it to train
    /// actions that were sampled with a demonstration or a hint in the prompt as if the prompt had not contained it.
    ///
    /// The path is copied as by [`Forest::splice`]: nodes keep their kinds, name their origin and have no log-probs,
    /// because they were not sampled after this prompt; steps keep their rewards. The first action acts on `state`; if
    /// it is `None`, on the same state as before. The new trajectory is running. It is a child of the old one, without
    /// a token in common.
    pub fn with_prompt(
        &mut self,
        trajectory: Handle,
        tokens: Vec<i32>,
        blobs: Vec<BlobHash>,
        state: Option<&[u8]>,
    ) -> Result<Handle> {
        let (key, index) = split(trajectory);
        let group = self.group(trajectory)?;
        let mut prompt = NewNode::prompt(tokens);
        prompt.blobs = blobs;
        prompt.check()?;
        self.check_blobs(&prompt.blobs)?;
        let entry = &group.trajectories[index];
        if entry.context() > 0 {
            return Err(Error::invalid(format!(
                "the context of trajectory {trajectory} was rewritten, so its actions do not share a prompt; choose \
                 a trajectory whose context only grew"
            )));
        }
        let path = group.path(entry.tip);
        let first = path.iter().find(|&&(node, _)| group.nodes[node].content.kind == Kind::Action);
        let &(first, _) = first.ok_or_else(|| {
            Error::invalid(format!("trajectory {trajectory} has no action; choose one with an action"))
        })?;
        let begin = group.nodes[first].start;
        let acted_on = group.state_acted_on(index, 0, begin).unwrap_or(group.nodes[first].state_key);
        let part = group.part(trajectory, handle(key, first), 0)?;
        part.check_length(prompt.tokens.len())?;
        let group = self.group_mut(trajectory)?;
        let copy = group.fork(index, ForkPoint::START, None);
        let shift = prompt.tokens.len() as i64 - i64::from(begin);
        group.trajectories[copy].untrained = group.trajectories[index].untrained;
        group.attach(copy, prompt);
        group.trajectories[copy].state_key = Some(state.map_or(acted_on, hash_bytes));
        group.copy(part, index, copy, shift);
        Ok(handle(key, copy))
    }
}
