//! Dropping old iterations, in a regular commit.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, UInt32Array};

use super::Store;
use super::commit::Commit;
use super::folders::{FOLDERS, STATES, is_kept};
use super::segment::Segment;
use super::write_log::WriteKind;
use crate::batch::{array, i64s, lists};
use crate::schema::Table;
use crate::{Check, Error, Result, arrow_bug};

impl Store {
    /// Drop the iterations below `iteration`, but keep their metrics and their rows in the write log. Later rows can
    /// need older ones (a replayed trajectory, a forked node). Components can refer to older trajectories (by arrays of
    /// the state whose paths end in `trajectory_id`). With `rewrite` the needed rows are kept; otherwise the call is an
    /// error.
    pub fn drop_before(&mut self, iteration: i64, rewrite: bool, check: Check<'_>) -> Result<()> {
        self.writable()?;
        self.settle()?;
        if iteration > self.head.iteration {
            return Err(Error::invalid(format!(
                "iteration is {iteration}, but only {closed} iterations are closed and can be dropped; give at most {closed}",
                closed = self.head.iteration
            )));
        }
        if iteration <= self.head.dropped {
            return Ok(());
        }
        check()?;
        let entries = self.entries(None)?;
        let boundary = entries.iter().position(|entry| entry.iteration >= iteration);
        let kept = &entries[boundary.unwrap_or(entries.len())..];
        let cut = |folder: &str| kept.first().map_or(self.head.end(folder), |entry| entry.rows[folder].start);
        let mut cuts: BTreeMap<&str, u64> =
            FOLDERS.iter().filter(|&&folder| !is_kept(folder)).map(|&folder| (folder, cut(folder))).collect();
        let states_from = self.head.states_from;
        cuts.entry(STATES).and_modify(|cut| *cut = states_from.min(*cut));

        let mut trajectories: BTreeSet<i64> = kept
            .iter()
            .filter(|entry| entry.kind == WriteKind::Batch)
            .flat_map(|entry| entry.stored.iter().copied())
            .chain(self.referred()?)
            .collect();
        let later = |store: &Self, folder: &str| cuts[folder]..store.head.end(folder);
        self.walk("trajectories", later(self, "trajectories"), check, |rows| {
            i64s(rows, "trajectory_id")?.values().iter().for_each(|id| _ = trajectories.remove(id));
            Ok(())
        })?;
        let trajectories: Vec<i64> = trajectories.into_iter().collect();
        let older = self.with_keys(Table::Trajectories, &trajectories)?;
        let older_steps = self.with_keys(Table::Steps, &trajectories)?;
        // A step whose context was rewritten later is not on the path to the leaf.
        let mut nodes: BTreeSet<i64> = i64s(&older, "leaf_node_id")?.values().iter().copied().collect();
        nodes.extend(i64s(&older_steps, "node_id")?.values());
        for (folder, column) in [("trajectories", "leaf_node_id"), ("steps", "node_id"), ("nodes", "parent_id")] {
            self.walk(folder, later(self, folder), check, |rows| {
                nodes.extend(i64s(rows, column)?.iter().flatten());
                Ok(())
            })?;
        }
        self.walk("nodes", later(self, "nodes"), check, |rows| {
            i64s(rows, "node_id")?.values().iter().for_each(|id| _ = nodes.remove(id));
            Ok(())
        })?;
        let needed = trajectories.len() + nodes.len();
        if needed > 0 && !rewrite {
            let mut which = Vec::new();
            which.extend(trajectories.first().map(|id| format!("trajectory {id}, which is drawn again or remembered")));
            which.extend(nodes.first().map(|id| format!("node {id}, which is on a later path")));
            return Err(Error::invalid(format!(
                "iterations from {iteration} on need {needed} rows of older ones, such as {}; give rewrite=True to keep those \
                 rows",
                which.join(" and ")
            )));
        }
        let mut carried: BTreeMap<&str, RecordBatch> = BTreeMap::new();
        carried.insert(Table::Steps.name(), older_steps);
        carried.insert(Table::Trajectories.name(), older);
        carried.insert(Table::Nodes.name(), self.paths(&nodes)?);
        carried.insert(Table::Tasks.name(), self.latest_tasks(cuts[Table::Tasks.name()])?);
        check()?;
        self.writable()?.has_unused_blobs = true;
        self.poisoning(|store| store.drop_rows(iteration, &cuts, carried))?;
        check()?;
        self.remove_unused_blobs(check)?;
        self.writable()?.has_unused_blobs = false;
        Ok(())
    }

    /// Replace the files before the cuts in one commit, by the carried rows and the remaining rows of each file that is
    /// cut.
    fn drop_rows(
        &mut self,
        iteration: i64,
        cuts: &BTreeMap<&str, u64>,
        mut carried: BTreeMap<&str, RecordBatch>,
    ) -> Result<()> {
        let mut commit = Commit::begin(self);
        commit.next.head.dropped = iteration;
        for &folder in FOLDERS.iter().filter(|&&folder| !is_kept(folder)) {
            let cut = cuts[folder];
            let old = self.files.of(folder).iter().filter(|segment| segment.first_row < cut);
            let Some(end) = old.map(Segment::end_row).max() else { continue };
            let mut rows = if end > cut { self.numbered(folder, cut..end)? } else { Vec::new() };
            // Rows keep their numbers. The carried rows get the last numbers before the cut.
            let mut first_row = cut;
            if let Some(carried) = carried.remove(folder).filter(|carried| carried.num_rows() > 0) {
                first_row -= carried.num_rows() as u64;
                rows.insert(0, carried);
            }
            commit.replace(self, folder, |segment| segment.first_row < cut);
            commit.seal(self, folder, rows, first_row)?;
        }
        commit.finish(self)
    }

    /// Return the last row of each task before row number `cut`.
    fn latest_tasks(&mut self, cut: u64) -> Result<RecordBatch> {
        let rows = super::read::joined(&Table::Tasks.schema(), &self.numbered(Table::Tasks.name(), 0..cut)?)?;
        let names = array(&rows, "task_id")?.as_string::<i32>();
        let latest: BTreeMap<&str, u32> = (0..rows.num_rows()).map(|row| (names.value(row), row as u32)).collect();
        let latest: BTreeSet<u32> = latest.into_values().collect();
        arrow_select::take::take_record_batch(&rows, &latest.into_iter().collect::<UInt32Array>()).map_err(arrow_bug)
    }

    fn remove_unused_blobs(&mut self, check: Check<'_>) -> Result<()> {
        if self.blob_files()?.is_empty() {
            return Ok(());
        }
        let nodes = Table::Nodes.name();
        let kept = self.blobs_in_use(0..self.head.end(nodes), check)?;
        self.remove_blobs_except(&kept)
    }

    /// Return the hashes of the blobs that the given nodes refer to.
    pub(super) fn blobs_in_use(&mut self, nodes: Range<u64>, check: Check<'_>) -> Result<BTreeSet<[u8; 32]>> {
        let mut found = BTreeSet::new();
        self.walk(Table::Nodes.name(), nodes, check, |rows| {
            let blobs = lists(rows, "blobs")?;
            for list in (0..blobs.len()).filter(|&row| !blobs.is_null(row)).map(|row| blobs.value(row)) {
                found.extend(
                    list.as_fixed_size_binary().iter().flatten().filter_map(|hash| <[u8; 32]>::try_from(hash).ok()),
                );
            }
            Ok(())
        })?;
        Ok(found)
    }
}
