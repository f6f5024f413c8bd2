//! The rollout logs of a store: open, remove and verify them.

use std::collections::BTreeSet;
use std::io;

use super::Store;
use super::fs::failed;
use super::rollout_log::{FOLDER, RolloutLog, Scanned, iterations, path, scan};
use super::verify::Finding;
use crate::{Error, Result};

impl Store {
    /// Return the rollout log of an iteration whose batch is not committed yet, with the records it has. The commit
    /// that adds the batch, or closes the iteration, removes the log.
    pub fn rollout_log(&mut self, iteration: i64) -> Result<RolloutLog> {
        self.writable()?;
        if iteration < self.head.iteration || self.has_batch(iteration)? {
            return Err(Error::invalid(format!(
                "iteration is {iteration}, but its batch is stored and its rollout log closed; continue with iteration \
                 {}",
                self.head.iteration
            )));
        }
        if let Some(log) = self.writable()?.rollout_logs.0.get(&iteration) {
            return Ok(log.clone());
        }
        let log = RolloutLog::open(self.fs.clone(), &self.path, iteration, self.sync())?;
        self.writable()?.rollout_logs.0.insert(iteration, log.clone());
        Ok(log)
    }

    /// Remove the logs of iterations whose batches were just committed.
    pub(super) fn end_rollout_logs(&mut self, iterations: impl Iterator<Item = i64>) -> Result<()> {
        let ended: BTreeSet<i64> = iterations.collect();
        for iteration in &ended {
            if let Some(log) = self.writer.as_mut().and_then(|writer| writer.rollout_logs.0.remove(iteration)) {
                log.end(&format!("the batch of iteration {iteration} is committed; use the log of a later iteration"));
            }
        }
        let fs = self.fs.as_ref();
        let left = self::iterations(fs, &self.path)?.into_iter().filter(|iteration| ended.contains(iteration));
        left.map(|iteration| path(&self.path, iteration))
            .try_for_each(|path| fs.remove(&path).map_err(failed("remove", &path)))
    }

    /// Remove the logs of committed iterations. A writer that is killed in a commit leaves them.
    pub(super) fn remove_ended_rollout_logs(&mut self) -> Result<()> {
        for iteration in iterations(self.fs.as_ref(), &self.path)? {
            // If the store cannot be read here, opening the log reports the error.
            if iteration < self.head.iteration || self.has_batch(iteration).unwrap_or_default() {
                let path = path(&self.path, iteration);
                self.fs.remove(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Return the defects of the logs. An end that was cut off is not a defect, because a kill leaves it.
    pub(super) fn verify_rollout_logs(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for iteration in iterations(self.fs.as_ref(), &self.path)? {
            let path = path(&self.path, iteration);
            let found = match self.fs.length(&path) {
                // The commit of the iteration's batch has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                length => length
                    .map_err(failed("read", &path))
                    .and_then(|length| Ok((length, scan(self.fs.as_ref(), &path, length, |_, _| {})?))),
            };
            let message = match found {
                Ok((length, Scanned { end, is_damaged: true })) => {
                    format!("{} is damaged in bytes {end} to {length}; records there are skipped", path.display())
                }
                Ok(_) => continue,
                Err(error) => error.to_string(),
            };
            findings.push(Finding { folder: FOLDER.to_owned(), kind: "damage", id: Some(iteration), message });
        }
        Ok(findings)
    }
}
