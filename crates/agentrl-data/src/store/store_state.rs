//! The arrays of a store's state: read them, and create the rows that change them.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::Store;
use super::folders::STATES;
use super::state_rows::{Arrays, Dtype, PieceKind, StateArray, StateRows, StoredArrays};
use crate::batch::{i64s, lists};
use crate::{Error, Result};

/// Last part of the path of an array whose values are ids of trajectories that a component refers to.
const REFERENCES: &str = "trajectory_id";

impl Store {
    /// Return the arrays of the components' state after the last closed iteration.
    pub fn arrays(&mut self) -> Result<Arrays> {
        self.settle()?;
        Ok(self.known_arrays()?.arrays)
    }

    /// Return the rows of folder `states` that change the stored arrays to `arrays`, and whether all arrays are written
    /// whole.
    pub(super) fn state_rows(&mut self, iteration: i64, arrays: &Arrays) -> Result<(RecordBatch, bool)> {
        arrays.iter().try_for_each(|(path, array)| array.check(path))?;
        let known = self.known_arrays()?;
        let mut rows = StateRows::default();
        for path in known.arrays.keys().filter(|path| !arrays.contains_key(*path)) {
            rows.push(
                path,
                &StateArray { rows: 0, bytes: Arc::default(), ..known.arrays[path].clone() },
                PieceKind::Gone,
                0,
                &[],
                &[],
            );
        }
        for (path, array) in arrays {
            match known.arrays.get(path).filter(|known| (known.dtype, known.width) == (array.dtype, array.width)) {
                Some(known) => rows.delta(path, known, array),
                None => rows.base(path, array),
            }
        }
        let total: usize = arrays.values().map(|array| array.bytes.len()).sum();
        let mut changed = known.changed + rows.bytes;
        let is_base = !arrays.is_empty() && (!known.begun || 2 * changed > total);
        if is_base {
            rows = StateRows::default();
            for (path, array) in arrays {
                rows.base(path, array);
            }
            changed = 0;
        }
        let begun = known.begun || is_base;
        let rows = rows.finish(iteration)?;
        self.writable()?.states = Some(StoredArrays { arrays: arrays.clone(), changed, begun });
        Ok((rows, is_base))
    }

    /// Return the trajectories that components refer to: the values of arrays whose paths end in `trajectory_id`.
    pub(super) fn referred(&mut self) -> Result<BTreeSet<i64>> {
        let arrays = self.known_arrays()?.arrays;
        let is_reference = |(path, array): &(&String, &StateArray)| {
            path.rsplit('/').next() == Some(REFERENCES) && array.dtype == Dtype::I64
        };
        let ids = arrays.iter().filter(is_reference).flat_map(|(_, array)| array.bytes.as_chunks::<8>().0);
        Ok(ids.map(|bytes| i64::from_le_bytes(*bytes)).filter(|&id| id >= 0).collect())
    }

    fn known_arrays(&mut self) -> Result<StoredArrays> {
        if let Some(known) = self.writer.as_ref().and_then(|writer| writer.states.clone()) {
            return Ok(known);
        }
        let (first, end) = (self.head.states_from, self.head.end(STATES));
        let parts = self.numbered(STATES, first..end)?;
        let found: u64 = parts.iter().map(|part| part.num_rows() as u64).sum();
        if found != end - first {
            return Err(Error::not_found(format!(
                "the arrays of iteration {} were dropped since this store was opened; call refresh(), or open it again",
                self.head.iteration
            )));
        }
        let mut known = StoredArrays { begun: end > 0, ..StoredArrays::default() };
        let mut writes = Vec::new();
        for part in &parts {
            known.fold(part)?;
            writes.extend_from_slice(i64s(part, "iteration")?.values());
        }
        for (path, array) in &known.arrays {
            array.check(path).map_err(|error| {
                let what = format!("folder {STATES}: array {path:?} is incomplete; restore the folder from a copy");
                Error::corrupt(what).with_source(error)
            })?;
        }
        // The first of these writes wrote the arrays whole, so it is not a change.
        let mut place = 0;
        for part in &parts {
            let (indices, values) = (lists(part, "indices")?, lists(part, "values")?);
            for row in 0..part.num_rows() {
                if writes[place] != writes[0] {
                    known.changed += values.value_length(row) as usize + 8 * indices.value_length(row) as usize;
                }
                place += 1;
            }
        }
        if let Some(writer) = &mut self.writer {
            writer.states = Some(known.clone());
        }
        Ok(known)
    }
}
