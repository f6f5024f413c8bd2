//! A turn in one call: the action, what the environment paid for it, and what it said.

use super::trajectory::check_rewards;
use super::{Forest, Handle, NewNode, StepOutcome, handle, split};
use crate::schema::Kind;
use crate::{Error, Result};

/// What [`Forest::turn`] takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// The (last segment of the) action.
    pub action: NewNode,
    /// What the environment paid.
    pub outcome: StepOutcome,
    /// Tokens that end the turn where the action did not, put in behind it.
    pub end_of_turn: Vec<i32>,
    /// What the environment said.
    pub observation: Option<NewNode>,
}

impl Forest {
    /// What [`Forest::append`] of an action, [`Forest::step`], and [`Forest::append`] of what comes behind it do, all of it
    /// or nothing. Returns the nodes of the action and of the observation.
    pub fn turn(&mut self, trajectory: Handle, turn: Turn) -> Result<(Handle, Option<Handle>)> {
        let Turn { action, outcome, end_of_turn, observation } = turn;
        for (name, node, kind) in
            [("action", Some(&action), Kind::Action), ("observation", observation.as_ref(), Kind::Observation)]
        {
            if let Some(node) = node.filter(|node| node.kind != kind) {
                return Err(Error::invalid(format!("{name} is a node of kind {:?}", node.kind)));
            }
        }
        let ending = (!end_of_turn.is_empty()).then(|| NewNode::new(Kind::Injected, end_of_turn));
        let nodes: Vec<&NewNode> =
            [Some(&action), ending.as_ref(), observation.as_ref()].into_iter().flatten().collect();
        self.check_append(trajectory, &nodes)?;
        check_rewards(outcome.reward, outcome.rewards.as_deref(), self.reward_components.as_deref())?;
        let (key, index) = split(trajectory);
        let group = self.group_mut(trajectory)?;
        let action = group.attach(index, action);
        group.trajectories[index].close_step(index, &outcome);
        if let Some(ending) = ending {
            group.attach(index, ending);
        }
        let observation = observation.map(|observation| group.attach(index, observation));
        Ok((handle(key, action), observation.map(|node| handle(key, node))))
    }
}
