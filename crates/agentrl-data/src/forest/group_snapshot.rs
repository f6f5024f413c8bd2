//! Snapshots: frozen copies of single live groups.

use super::frozen_groups::FrozenGroups;
use super::{Forest, Handle, handle};
use crate::batch::Batch;
use crate::{Check, Result};

impl Forest {
    /// Return a frozen copy of one live group, as [`Forest::freeze_partial`] would freeze it now, and the handle of
    /// each row of its `trajectories`. The forest does not change. The ids of the copy are valid in the copy only.
    pub fn snapshot(&self, group: u32) -> Result<(Batch, Vec<Handle>)> {
        self.copy_group(group)?.freeze_with_handles(&mut || Ok(()))
    }

    /// Return the copy that [`Forest::snapshot`] freezes. Freezing it needs no access to the forest.
    pub fn copy_group(&self, group: u32) -> Result<FrozenGroups> {
        Ok(self.frozen_groups(vec![self.of_number(group)?.clone()]))
    }
}

impl FrozenGroups {
    /// Return the batch of the groups, and the handle of each row of its `trajectories`.
    pub fn freeze_with_handles(&self, check: Check<'_>) -> Result<(Batch, Vec<Handle>)> {
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
        // Rows are ordered by id, and adopted rows have smaller ids than new ones.
        handles.sort_unstable();
        Ok((self.batch(&groups, check)?, handles.into_iter().map(|(_, handle)| handle).collect()))
    }
}
