//! Compaction: merge many files into few while other threads read and write.
//!
//! A compaction has exclusive access to the store only while it plans a merge and while the merge takes effect. In
//! between it reads old files and writes new ones, and no other thread has to wait.
//!
//! New files have temporary names until a regular commit makes them take effect. If another commit has merged or
//! dropped some of the old files meanwhile, the new files are deleted.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::column_union::merge_columns;
use super::commit::Commit;
use super::folders::FOLDERS;
use super::fs::failed;
use super::segment::{Segment, is_other};
use super::{Store, Sync, merge_policy};
use crate::schema::Table;
use crate::{Check, Error, Result};

/// A function that calls its argument with exclusive access to the store.
pub type Enter<'a> = &'a mut dyn FnMut(&mut dyn FnMut(&mut Store) -> Result<()>) -> Result<()>;

/// Merge neighbouring files into files of at least twice the size, up to 64 MB, and remove blobs that no node refers
/// to. The store is entered only for short steps, and other threads can use it in between. Rows keep their numbers and
/// order, so readers are not affected. Returns the reduction in the number of files; 0 if another thread is compacting.
pub fn compact(enter: Enter<'_>, check: Check<'_>) -> Result<usize> {
    let begun = within(enter, |store| {
        let busy = store.writable()?.compacting.clone();
        store.settle()?;
        Ok((busy, store.head.rows.clone()))
    })?;
    // Rows that are appended from here on are left to the next compaction.
    let (busy, ends) = begun;
    // One reference is the store's, and one is this function's.
    if Arc::strong_count(&busy) > 2 {
        return Ok(0);
    }
    let mut fewer = 0;
    for &folder in FOLDERS.iter() {
        let (mut from, end) = (0, ends.get(folder).copied().unwrap_or_default());
        while let Some(merge) = within(enter, |store| store.plan_merge(folder, from..end))? {
            from = merge.files.last().map_or(end, Segment::end_row);
            check()?;
            fewer += merge.carry_out(enter)?;
        }
    }
    check()?;
    remove_unused_blobs(enter, check)?;
    Ok(fewer)
}

fn within<T>(enter: Enter<'_>, work: impl FnOnce(&mut Store) -> Result<T>) -> Result<T> {
    let (mut work, mut done) = (Some(work), None);
    enter(&mut |store| {
        done = work.take().map(|work| work(store)).transpose()?;
        Ok(())
    })?;
    done.ok_or_else(|| Error::internal("the store was not entered"))
}

/// Neighbouring files of a folder to be merged into fewer.
struct Merge {
    folder: &'static str,
    files: Vec<Segment>,
    /// A reader of the store at the time of planning.
    before: Store,
    sync: Sync,
}

impl Merge {
    fn carry_out(&self, enter: Enter<'_>) -> Result<usize> {
        let rows = self.files.iter().map(|file| self.before.whole_rows(self.folder, file));
        let rows = match rows.collect::<Result<Vec<_>>>() {
            Ok(rows) => rows.into_iter().flatten().collect(),
            // Cancel the merge if another commit replaced or dropped these files.
            Err(error) if is_other(&error) && !within(enter, |store| Ok(store.has(self)))? => return Ok(0),
            Err(error) => return Err(error),
        };
        let files = merge_columns(rows)?;
        if files.len() >= self.files.len() {
            return Ok(0);
        }
        let mut row = self.files.first().map_or(0, |file| file.first_row);
        let (folder, commit) = (self.before.path.join(self.folder), self.before.files.head.version);
        let mut sealed = Vec::with_capacity(files.len());
        for rows in files {
            let segment = Segment::begun(row, commit);
            let path = segment.merged(&folder);
            let segment = match segment.seal(self.before.fs.as_ref(), &path, &rows, self.folder, self.sync) {
                Ok(segment) => segment,
                // After a failed write the contents of the disk are unknown: allow no later write.
                Err(error) => return within(enter, |store| store.poisoning(|_| Err(error))),
            };
            row = segment.end_row();
            sealed.push(segment);
        }
        within(enter, |store| store.take_over(self, &sealed))
    }
}

impl Store {
    /// [`compact`] for a store that no other thread uses.
    pub fn compact(&mut self, check: Check<'_>) -> Result<usize> {
        compact(&mut |work| work(self), check)
    }

    /// Return the first files worth merging among those with the given rows of a folder.
    fn plan_merge(&mut self, folder: &'static str, rows: std::ops::Range<u64>) -> Result<Option<Merge>> {
        self.writable()?;
        let files = self.files.of(folder);
        let from = files.partition_point(|file| file.first_row < rows.start);
        let to = files.partition_point(|file| file.end_row() <= rows.end);
        let files = files.get(from..to).unwrap_or_default();
        let Some(found) = merge_policy::worth_merging(files) else { return Ok(None) };
        let files = files[found].to_vec();
        let before = Self::new(self.fs.clone(), &self.path, self.files.clone(), None);
        Ok(Some(Merge { folder, files, before, sync: self.sync() }))
    }

    /// Return whether the store still has all files of a merge.
    fn has(&self, merge: &Merge) -> bool {
        let own = self.files.of(merge.folder);
        merge.files.iter().all(|file| own.contains(file))
    }

    /// Replace the files of a merge by the merged ones in a commit. Returns the reduction in the number of files. If
    /// the store no longer has the old files, deletes the merged ones and returns 0.
    fn take_over(&mut self, merge: &Merge, sealed: &[Segment]) -> Result<usize> {
        self.writable()?;
        let folder = self.path.join(merge.folder);
        if !self.has(merge) {
            for path in sealed.iter().map(|segment| segment.merged(&folder)) {
                self.fs.remove(&path).map_err(failed("remove", &path))?;
            }
            return Ok(0);
        }
        self.poisoning(|store| {
            let mut commit = Commit::begin(store);
            commit.replace(store, merge.folder, |segment| merge.files.contains(segment));
            for segment in sealed {
                commit.take(store, merge.folder, segment.clone())?;
            }
            commit.finish(store)
        })?;
        Ok(merge.files.len() - sealed.len())
    }
}

/// Remove blobs that no node refers to. Most nodes are read without access to the store; only those added meanwhile are
/// read while it is entered.
fn remove_unused_blobs(enter: Enter<'_>, check: Check<'_>) -> Result<()> {
    let nodes = Table::Nodes.name();
    let before = within(enter, |store| {
        let is_needed = store.writable()?.has_unused_blobs;
        store.settle()?;
        let is_needed = is_needed && !store.blob_files()?.is_empty();
        Ok(is_needed.then(|| Store::new(store.fs.clone(), &store.path, store.files.clone(), None)))
    })?;
    let Some(mut before) = before else { return Ok(()) };
    let seen = before.head.end(nodes);
    let mut kept: BTreeSet<[u8; 32]> = before.blobs_in_use(0..seen, check)?;
    within(enter, |store| {
        store.writable()?;
        store.settle()?;
        kept.extend(store.blobs_in_use(seen..store.head.end(nodes), &mut || Ok(()))?);
        store.remove_blobs_except(&kept)?;
        store.writable()?.has_unused_blobs = false;
        Ok(())
    })
}
