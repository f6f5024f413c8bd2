//! Many files merged into few, while others go on reading and writing: the store is entered for the moments in which a
//! merge is planned and in which it takes effect. What lies between them, reading old files and writing new ones, needs
//! nobody to wait.
//!
//! New files lie under names of their own until they take effect, in a commit like any other. Where a commit has merged or
//! dropped some of the old ones meanwhile, the new ones are thrown away.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::commit::Commit;
use super::folders::FOLDERS;
use super::fs::failed;
use super::merged_columns::merge_columns;
use super::segment::{Segment, is_other};
use super::{Store, Sync, merge_policy};
use crate::schema::Table;
use crate::{Check, Error, Result};

/// Gives the store for a moment.
pub type Enter<'a> = &'a mut dyn FnMut(&mut dyn FnMut(&mut Store) -> Result<()>) -> Result<()>;

/// Merges neighbouring files into ones of twice their size, up to 64 MB, and removes blobs that no node refers to, in a
/// store that is entered now and then and is anybody's between. Rows and their order stay, so readers go on undisturbed.
/// Returns by how many files the store became smaller; 0 if another thread is doing it.
pub fn compact(enter: Enter<'_>, check: Check<'_>) -> Result<usize> {
    let begun = within(enter, |store| {
        let busy = store.writable()?.compacting.clone();
        store.settle()?;
        Ok((busy, store.head.rows.clone()))
    })?;
    // What is appended from here on waits for the next time.
    let (busy, ends) = begun;
    // One is the store's, one is ours.
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

/// Neighbouring files of a folder that are to become fewer.
struct Merge {
    folder: &'static str,
    files: Vec<Segment>,
    /// A reader of the store as it was.
    before: Store,
    sync: Sync,
}

impl Merge {
    fn carry_out(&self, enter: Enter<'_>) -> Result<usize> {
        let rows = self.files.iter().map(|file| self.before.whole_rows(self.folder, file));
        let rows = match rows.collect::<Result<Vec<_>>>() {
            Ok(rows) => rows.into_iter().flatten().collect(),
            // Whoever took a file away knows where its rows are.
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
                // Nobody knows what a disk keeps that failed once.
                Err(error) => return within(enter, |store| store.poisoning(|_| Err(error))),
            };
            row = segment.end_row();
            sealed.push(segment);
        }
        within(enter, |store| store.take_over(self, &sealed))
    }
}

impl Store {
    /// [`compact`] of a store that has no other user.
    pub fn compact(&mut self, check: Check<'_>) -> Result<usize> {
        compact(&mut |work| work(self), check)
    }

    /// The first files of some rows of a folder that can be merged.
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

    /// Whether the files of a merge are still those of the store.
    fn has(&self, merge: &Merge) -> bool {
        let own = self.files.of(merge.folder);
        merge.files.iter().all(|file| own.contains(file))
    }

    /// Puts merged files in the place of those that they were made of.
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

/// Removes blobs that no node refers to. Most nodes are looked through beside the store, those that came meanwhile in it.
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
