//! Verification of a store: every byte against its checksum, and every rule between rows.

use std::collections::BTreeSet;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt8Type};
use arrow_array::{Array, Int32Array, Int64Array, ListArray, RecordBatch};

use super::Store;
use super::folders::FOLDERS;
use crate::batch::{array, hex, i32s, i64s, lists};
use crate::{Check, Error, ErrorKind, Result};

/// Number of findings of one kind in a folder that are listed. One more finding represents all others.
const MOST: usize = 100;

/// A defect of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The folder that has the defect.
    pub folder: String,
    /// The kind of rule that is broken: `damage`, `reference`, `length`, `value`, `duplicate` or `blob`.
    pub kind: &'static str,
    /// Id in the folder's first column, if the finding is about a row.
    pub id: Option<i64>,
    /// The description of the defect.
    pub message: String,
}

/// Parent, first token and number of tokens of a node.
#[derive(Clone, Copy)]
struct Extent {
    id: i64,
    parent: Option<i64>,
    start: i32,
    length: i32,
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, folder: &str, kind: &'static str, id: Option<i64>, message: String) {
        let same_kind =
            self.0.iter().rev().take_while(|found| found.folder == folder).filter(|found| found.kind == kind);
        let same_kind = same_kind.count();
        if same_kind < MOST {
            self.0.push(Finding { folder: folder.to_owned(), kind, id, message });
        } else if same_kind == MOST {
            self.0.push(Finding {
                folder: folder.to_owned(),
                kind,
                id: None,
                message: "and more of this kind".to_owned(),
            });
        }
    }
}

impl Store {
    /// Return all defects of the store; empty if there are none. Finds damaged files, references to missing rows, lists
    /// of unequal length, log-probs that are not finite, rewards that are NaN, trajectories that train twice in one
    /// group of one iteration, and missing or damaged blobs.
    pub fn verify(&mut self, check: Check<'_>) -> Result<Vec<Finding>> {
        self.check_process()?;
        self.settle()?;
        let mut findings = Findings::default();
        for &folder in FOLDERS.iter() {
            check()?;
            self.verify_files(folder, &mut findings, check)?;
        }
        if !findings.0.is_empty() {
            // The rules between rows cannot be checked if rows cannot be read.
            return Ok(findings.0);
        }
        let nodes = self.verify_nodes(&mut findings, check)?;
        let trajectories = self.verify_trajectories(&nodes, &mut findings, check)?;
        self.verify_steps(&nodes, &trajectories, &mut findings, check)?;
        self.verify_draws(&trajectories, &mut findings, check)?;
        match self.arrays() {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                findings.add("states", "value", None, error.to_string());
            }
            Err(error) => return Err(error),
        }
        findings.0.extend(self.verify_rollout_logs()?);
        for hash in self.blobs_in_use(0..self.head.end("nodes"), check)? {
            check()?;
            match self.blob(&hash) {
                Ok(_) => {}
                Err(error) if [ErrorKind::NotFound, ErrorKind::Corrupt].contains(&error.kind()) => {
                    findings.add("blobs", "blob", None, format!("blob {}: {error}", hex(&hash)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(findings.0)
    }

    fn verify_files(&mut self, folder: &str, findings: &mut Findings, check: Check<'_>) -> Result<()> {
        let segments = self.files.of(folder).to_vec();
        let mut row = None;
        for segment in segments {
            check()?;
            if row.is_some_and(|row| row != segment.first_row) {
                let message = format!("rows {} to {} are in no file", row.unwrap_or(0), segment.first_row);
                findings.add(folder, "damage", None, message);
            }
            row = Some(segment.end_row());
            match self.numbered(folder, segment.first_row..segment.end_row()) {
                Ok(_) => {}
                Err(error) if [ErrorKind::Corrupt, ErrorKind::Schema, ErrorKind::Io].contains(&error.kind()) => {
                    findings.add(folder, "damage", None, error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn verify_nodes(&mut self, findings: &mut Findings, check: Check<'_>) -> Result<Vec<Extent>> {
        let mut extents: Vec<Extent> = Vec::new();
        self.walk("nodes", 0..self.head.end("nodes"), check, |rows| {
            let (ids, starts) = (i64s(rows, "node_id")?, i32s(rows, "start")?);
            let (parents, ends) = (i64s(rows, "parent_id")?, i32s(rows, "parent_end")?);
            let tokens = lists(rows, "tokens")?;
            for row in 0..rows.num_rows() {
                let parent = (!parents.is_null(row)).then(|| parents.value(row));
                let (id, start, length) = (ids.value(row), starts.value(row), tokens.value_length(row));
                let extent = Extent { id, parent, start, length };
                let mut add = |kind, message| findings.add("nodes", kind, Some(extent.id), message);
                if extents.last().is_some_and(|last| last.id >= extent.id) {
                    add("reference", "its id does not come after the one before it".to_owned());
                }
                match parent.map(|id| (id, value(ends, row), extent_of(&extents, id))) {
                    None if extent.start == 0 => {}
                    None => add("reference", format!("it has no parent, but starts at token {}", extent.start)),
                    Some((id, _, None)) => add("reference", format!("its parent {id} is not there")),
                    Some((id, end, Some(parent))) => {
                        let used = end.unwrap_or(parent.length);
                        if !(0..=parent.length).contains(&used) {
                            add(
                                "reference",
                                format!("it uses {used} of the {} tokens of its parent {id}", parent.length),
                            );
                        } else if parent.start.checked_add(used) != Some(extent.start) {
                            add(
                                "reference",
                                format!("it starts at token {}, where its parent {id} does not end", extent.start),
                            );
                        }
                    }
                }
                extents.push(extent);
            }
            check_lists(rows, tokens, findings)
        })?;
        Ok(extents)
    }

    fn verify_trajectories(
        &mut self,
        nodes: &[Extent],
        findings: &mut Findings,
        check: Check<'_>,
    ) -> Result<BTreeSet<i64>> {
        let mut found = BTreeSet::new();
        self.walk("trajectories", 0..self.head.end("trajectories"), check, |rows| {
            let (ids, leaves) = (i64s(rows, "trajectory_id")?, i64s(rows, "leaf_node_id")?);
            let ends = i32s(rows, "leaf_end")?;
            for row in 0..rows.num_rows() {
                let (id, leaf) = (ids.value(row), leaves.value(row));
                if !found.insert(id) {
                    findings.add("trajectories", "duplicate", Some(id), "it is there twice".to_owned());
                }
                if let Err(what) = ends_in(nodes, leaf, value(ends, row)) {
                    findings.add("trajectories", "reference", Some(id), format!("its leaf, {what}"));
                }
            }
            check_rewards("trajectories", rows, ids, findings)
        })?;
        Ok(found)
    }

    fn verify_steps(
        &mut self,
        nodes: &[Extent],
        trajectories: &BTreeSet<i64>,
        findings: &mut Findings,
        check: Check<'_>,
    ) -> Result<()> {
        let mut last = None;
        self.walk("steps", 0..self.head.end("steps"), check, |rows| {
            let (ids, steps) = (i64s(rows, "trajectory_id")?, i32s(rows, "step")?);
            let (from, to) = (i64s(rows, "first_node_id")?, i64s(rows, "node_id")?);
            let ends = i32s(rows, "end")?;
            for row in 0..rows.num_rows() {
                let (id, step) = (ids.value(row), steps.value(row));
                let mut add =
                    |kind, what: String| findings.add("steps", kind, Some(id), format!("step {step}: {what}"));
                if !trajectories.contains(&id) {
                    add("reference", "its trajectory is not there".to_owned());
                }
                if last.replace((id, step)).is_some_and(|last| last >= (id, step)) {
                    add("duplicate", "it does not come after the step before it".to_owned());
                }
                let (first, node) = (from.value(row), to.value(row));
                match ends_in(nodes, node, value(ends, row)) {
                    Err(what) => add("reference", format!("its action ends in {what}")),
                    Ok(end) if !is_on_path(nodes, first, end) => {
                        add("reference", format!("its action begins in node {first}, which is not above node {node}"));
                    }
                    Ok(_) => {}
                }
            }
            check_rewards("steps", rows, ids, findings)
        })
    }

    fn verify_draws(&mut self, trajectories: &BTreeSet<i64>, findings: &mut Findings, check: Check<'_>) -> Result<()> {
        let (mut ids_seen, mut uses) = (BTreeSet::new(), BTreeSet::new());
        self.walk("draws", 0..self.head.end("draws"), check, |rows| {
            let (ids, iterations) = (i64s(rows, "draw_id")?, i64s(rows, "iteration")?);
            let (drawn, groups) = (i64s(rows, "trajectory_id")?, i64s(rows, "group_id")?);
            let chances = array(rows, "probability")?;
            for row in 0..rows.num_rows() {
                let (id, iteration, trajectory) = (ids.value(row), iterations.value(row), drawn.value(row));
                let mut add = |kind, message| findings.add("draws", kind, Some(id), message);
                if !ids_seen.insert(id) {
                    add("duplicate", "its id is there twice".to_owned());
                }
                if !trajectories.contains(&trajectory) {
                    add("reference", format!("its trajectory {trajectory} is not there"));
                }
                // A draw with a probability can repeat a trajectory.
                if chances.is_null(row) && !uses.insert((iteration, groups.value(row), trajectory)) {
                    let group = groups.value(row);
                    let message =
                        format!("iteration {iteration} trains trajectory {trajectory} twice in group {group}");
                    add("duplicate", message);
                }
            }
            Ok(())
        })
    }
}

/// Return the node in which a path or action ends, or a description of the defect.
fn ends_in(nodes: &[Extent], id: i64, end: Option<i32>) -> std::result::Result<Extent, String> {
    let node = extent_of(nodes, id).ok_or_else(|| format!("node {id}, is not there"))?;
    match end.filter(|end| !(0..=node.length).contains(end)) {
        None => Ok(node),
        Some(end) => Err(format!("node {id}, has {} tokens, of which it uses {end}", node.length)),
    }
}

/// Return whether a node is `from` or an ancestor of it. Parents have smaller ids than their children.
fn is_on_path(nodes: &[Extent], id: i64, from: Extent) -> bool {
    let mut next = Some(from);
    while let Some(node) = next.filter(|node| node.id > id) {
        next = node.parent.filter(|&parent| parent < node.id).and_then(|parent| extent_of(nodes, parent));
    }
    next.is_some_and(|node| node.id == id)
}

fn extent_of(nodes: &[Extent], id: i64) -> Option<Extent> {
    nodes.binary_search_by_key(&id, |extent| extent.id).ok().map(|row| nodes[row])
}

fn value(column: &Int32Array, row: usize) -> Option<i32> {
    (!column.is_null(row)).then(|| column.value(row))
}

/// Check the lists of nodes: each is as long as the tokens or null, log-probs and entropies are finite, and masks are 0
/// or 1.
fn check_lists(rows: &RecordBatch, tokens: &ListArray, findings: &mut Findings) -> Result<()> {
    let ids = i64s(rows, "node_id")?;
    for name in ["logprobs", "entropies", "trainable"] {
        let lists = lists(rows, name)?;
        let fits = |position: usize| match lists.values().as_primitive_opt::<Float32Type>() {
            Some(values) => values.value(position).is_finite(),
            None => lists.values().as_primitive::<UInt8Type>().value(position) <= 1,
        };
        for row in (0..rows.num_rows()).filter(|&row| !lists.is_null(row)) {
            let (found, expected) = (lists.value_length(row), tokens.value_length(row));
            if found != expected {
                let message = format!("{name} has {found} values for {expected} tokens");
                findings.add("nodes", "length", Some(ids.value(row)), message);
            }
            let begin = lists.value_offsets()[row] as usize;
            if let Some(at) = (0..found as usize).find(|&at| !fits(begin + at)) {
                findings.add("nodes", "value", Some(ids.value(row)), format!("{name}[{at}] is out of range"));
            }
        }
    }
    Ok(())
}

fn check_rewards(folder: &str, rows: &RecordBatch, ids: &Int64Array, findings: &mut Findings) -> Result<()> {
    let rewards = array(rows, "reward")?.as_primitive_opt::<Float32Type>();
    let rewards = rewards.ok_or_else(|| Error::internal("rewards are not 32-bit floats"))?;
    for row in (0..rows.num_rows()).filter(|&row| !rewards.is_null(row)) {
        if rewards.value(row).is_nan() {
            findings.add(folder, "value", Some(ids.value(row)), "its reward is NaN".to_owned());
        }
    }
    Ok(())
}
