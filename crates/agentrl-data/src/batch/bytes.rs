//! A batch as bytes, for pickling and for sending to another process.

use arrow_array::RecordBatch;

use super::{Batch, Level};
use crate::schema::Table;
use crate::{Error, Result, ipc};

impl Batch {
    /// The tables, and the tables of computed columns, each as an Arrow IPC file.
    pub fn to_bytes(&self) -> Result<Vec<Vec<u8>>> {
        let mut parts = Table::ALL.iter().map(|&table| ipc::encode(self.table(table))).collect::<Result<Vec<_>>>()?;
        for level in [Level::Draw, Level::Step, Level::NodeToken] {
            if let Some(rows) = self.computed_table(level)? {
                parts.push(ipc::encode(&rows)?);
            }
        }
        Ok(parts)
    }

    /// The batch of [`Batch::to_bytes`].
    pub fn from_bytes<B: AsRef<[u8]>>(parts: &[B]) -> Result<Self> {
        let rows =
            parts.iter().map(|part| ipc::decode("part of a batch", part.as_ref())).collect::<Result<Vec<_>>>()?;
        let (facts, computed) = rows.split_at_checked(Table::COUNT).ok_or_else(|| {
            Error::corrupt(format!(
                "{} parts are given, but a batch has at least its {} tables",
                rows.len(),
                Table::COUNT
            ))
        })?;
        let tables: [RecordBatch; Table::COUNT] =
            facts.to_vec().try_into().map_err(|_| Error::internal("the tables became another number"))?;
        computed.iter().try_fold(Self::new(tables)?, |batch, rows| batch.with_computed_table(rows))
    }
}
