//! Calls that store all of their rows, or none.

use std::collections::BTreeMap;

use crate::Result;
use crate::forest::steps::OpenStep;
use crate::forest::{Forest, Handle, Place, split};

/// Lengths of a group's lists before a call.
#[derive(Clone, Copy, Debug)]
struct GroupMark {
    nodes: usize,
    changed: usize,
}

/// Parts of a trajectory before a call.
#[derive(Clone, Copy, Debug)]
struct TrajectoryMark {
    tip: Option<Place>,
    contexts: usize,
    steps: usize,
    open: Option<OpenStep>,
    state_key: Option<[u8; 16]>,
}

impl Forest {
    /// Run `work`, which appends to the ends of some running trajectories. If it fails, undo everything that it did.
    pub(super) fn all_or_nothing<T>(
        &mut self,
        trajectories: &[Handle],
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let row_types = self.row_types.clone();
        let mut groups = BTreeMap::new();
        let mut marks = BTreeMap::new();
        for &trajectory in trajectories {
            if marks.contains_key(&trajectory) {
                continue;
            }
            let (key, index) = split(trajectory);
            let group = self.live_group(trajectory)?;
            groups.entry(key).or_insert(GroupMark { nodes: group.nodes.len(), changed: group.changed.len() });
            let entry = &group.trajectories[index];
            let mark = TrajectoryMark {
                tip: entry.tip,
                contexts: entry.contexts.len(),
                steps: entry.steps.len(),
                open: entry.open,
                state_key: entry.state_key,
            };
            marks.insert(trajectory, mark);
        }
        work(self).inspect_err(|_| {
            self.row_types = row_types;
            for (trajectory, mark) in &marks {
                let (key, index) = split(*trajectory);
                let Some(group) = self.groups.get_mut(&key) else { continue };
                let entry = &mut group.trajectories[index];
                entry.tip = mark.tip;
                entry.contexts.truncate(mark.contexts);
                entry.steps.truncate(mark.steps);
                entry.open = mark.open;
                entry.state_key = mark.state_key;
            }
            for (key, mark) in &groups {
                let Some(group) = self.groups.get_mut(key) else { continue };
                group.nodes.truncate(mark.nodes);
                group.changed.truncate(mark.changed);
                group.roots.retain(|_, candidates| {
                    candidates.retain(|&root| root < mark.nodes);
                    !candidates.is_empty()
                });
            }
        })
    }
}
