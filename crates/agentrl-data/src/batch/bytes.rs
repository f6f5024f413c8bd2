//! A batch as bytes, for pickling and for sending to another process.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use serde::{Deserialize, Serialize};

use super::{Batch, Level, NextIds};
use crate::schema::Table;
use crate::{Check, Error, Result, ipc};

/// The header: the first part, which describes the others.
#[derive(Serialize, Deserialize)]
struct Header {
    base: NextIds,
    /// Number of tables of computed columns.
    computed: usize,
    /// Hashes of the blobs whose contents are the last parts.
    blobs: Vec<[u8; 32]>,
    /// The state of components.
    state: String,
}

impl Batch {
    /// Write the batch as parts: a header, the tables and the tables of computed columns (each an Arrow IPC file), and
    /// the contents of blobs.
    pub fn to_bytes(&self) -> Result<Vec<Vec<u8>>> {
        self.to_bytes_with(&mut || Ok(()))
    }

    /// [`Batch::to_bytes`] that calls `check` between the parts and stops if it returns an error.
    pub fn to_bytes_with(&self, check: Check<'_>) -> Result<Vec<Vec<u8>>> {
        let mut computed = Vec::new();
        for level in [Level::Draw, Level::Step, Level::NodeToken] {
            computed.extend(self.computed_table(level)?);
        }
        let blobs = self.blobs.keys().copied().collect();
        let header = serde_json::to_vec(&Header {
            base: self.base,
            computed: computed.len(),
            blobs,
            state: self.state.to_string(),
        })
        .map_err(|error| Error::internal("the header of a batch cannot be written as JSON").with_source(error))?;
        let mut parts = vec![header];
        for rows in Table::ALL.iter().map(|&table| self.table(table)).chain(&computed) {
            check()?;
            parts.push(ipc::encode(&rows.schema(), std::slice::from_ref(rows))?);
        }
        parts.extend(self.blobs.values().map(|content| content.to_vec()));
        Ok(parts)
    }

    /// Read the parts that [`Batch::to_bytes`] wrote.
    pub fn from_bytes(parts: &[Buffer]) -> Result<Self> {
        Self::from_bytes_with(parts, &mut || Ok(()))
    }

    /// [`Batch::from_bytes`] that calls `check` between the parts and stops if it returns an error.
    pub fn from_bytes_with(parts: &[Buffer], check: Check<'_>) -> Result<Self> {
        let few = || {
            let (found, least) = (parts.len(), Table::COUNT + 1);
            Error::corrupt(format!(
                "{found} parts are given, but a batch has at least a header and {} tables; give all parts in their order",
                least - 1
            ))
        };
        let (header, parts) = parts.split_first().ok_or_else(few)?;
        let header: Header = serde_json::from_slice(header).map_err(|error| {
            Error::corrupt(format!(
                "the first part is not the header of a batch ({error}); give all parts in their order"
            ))
        })?;
        let (facts, rest) = parts.split_at_checked(Table::COUNT).ok_or_else(few)?;
        let (computed, contents) = rest.split_at_checked(header.computed).ok_or_else(few)?;
        if contents.len() != header.blobs.len() {
            let (found, expected) = (contents.len(), header.blobs.len());
            return Err(Error::corrupt(format!(
                "the batch has {found} of its {expected} blobs; send all of its parts"
            )));
        }
        let decode = |part: &Buffer| ipc::decode("part of a batch", part);
        let tables = facts.iter().map(decode).collect::<Result<Vec<_>>>()?;
        let tables: [RecordBatch; Table::COUNT] =
            tables.try_into().map_err(|_| Error::internal("the tables became another number"))?;
        let blobs = header.blobs.into_iter().zip(contents.iter().map(|content| Arc::from(content.as_slice())));
        let batch = Self::new_with(tables, check)?
            .with_base(header.base)
            .with_state(&header.state)
            .with_blobs(Arc::new(blobs.collect()));
        computed.iter().try_fold(batch, |batch, part| {
            check()?;
            batch.with_computed_table(&decode(part)?)
        })
    }
}
