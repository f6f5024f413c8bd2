//! A look at one group while it is live.

use super::cut::Cut;
use super::{Forest, Handle, handle};
use crate::batch::Batch;
use crate::{Check, Result};

impl Forest {
    /// A frozen copy of one live group, as [`Forest::freeze_partial`] would freeze it now, and the handle of each row of its
    /// `trajectories`. The forest stays as it is, and so do its ids: those of the copy are of the copy alone.
    pub fn look(&self, group: u32) -> Result<(Batch, Vec<Handle>)> {
        self.copy_of(group)?.look(&mut || Ok(()))
    }

    /// The group that [`Forest::look`] freezes, so that it can be done beside others who go on with the forest.
    pub fn copy_of(&self, group: u32) -> Result<Cut> {
        Ok(self.cut_of(vec![self.of_number(group)?.clone()]))
    }
}

impl Cut {
    /// The batch of the groups, and the handle of each row of its `trajectories`.
    pub fn look(&self, check: Check<'_>) -> Result<(Batch, Vec<Handle>)> {
        let groups = self.ordered(check)?;
        let adopted = self
            .groups
            .iter()
            .flat_map(|group| group.adopted.trajectories.iter().map(|(&id, &index)| (id, handle(group.key, index))));
        let mut handles: Vec<(i64, Handle)> = adopted.collect();
        for entry in &groups {
            let of = |&index: &usize| (entry.trajectory_ids[index], handle(entry.group.key, index));
            handles.extend(entry.trajectories.iter().map(of));
        }
        // Rows are in the order of their ids: what was adopted has those below the new ones.
        handles.sort_unstable();
        Ok((self.batch(&groups, check)?, handles.into_iter().map(|(_, handle)| handle).collect()))
    }
}
