//! The frozen, immutable form of the data: the Arrow tables of one iteration's draws, and columns computed for them.

mod action_tokens;
mod arrays;
mod bytes;
mod column;
mod columns;
mod combine;
mod concat;
mod contexts;
pub(crate) mod draw_index;
mod image_uses;
mod join_draws;
pub(crate) mod node_tree;
mod pack;
mod plan;
mod sampling_options;
mod summed_streams;
pub(crate) mod task_counts;
mod tree;
mod weights;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{FieldRef, Schema};

pub use column::{Column, Level, Numbers};
pub use concat::NewDraws;
pub use contexts::Contexts;
pub use image_uses::ImageUses;
pub use join_draws::{JoinedDraws, NEW, OWN};
pub use pack::{LaidOut, PackArrays, PackSizes, PlannedPack};
pub use plan::{PackLayout, Plan, PlanOptions};
pub use sampling_options::Sampled;
pub use summed_streams::TokenCredit;
pub use tree::Tree;
pub use weights::TokenWeights;

pub(crate) use arrays::{array, i32s, i64s, lists, u8s};

use crate::facts::{self, Facts};
use crate::schema::{ENTROPIES, REWARD_COMPONENTS, Table};
use crate::{Check, Error, ErrorKind, Result, token_columns};
use draw_index::Layout;

/// Ids of the next rows of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NextIds {
    /// Next `node_id`.
    pub node: i64,
    /// Next `group_id`.
    pub group: i64,
    /// Next `trajectory_id`.
    pub trajectory: i64,
    /// Next `draw_id`.
    pub draw: i64,
}

/// Tables and the columns computed for them. A clone is cheap, because it shares everything.
#[derive(Clone, Debug)]
pub struct Batch {
    tables: [RecordBatch; Table::COUNT],
    columns: Vec<Column>,
    /// Source of the computed columns: recipe, options, version.
    source: BTreeMap<String, String>,
    layout: Arc<Layout>,
    base: NextIds,
    blobs: Blobs,
    /// Files with the contents of blobs that are not in memory.
    stored_blobs: Vec<Arc<dyn BlobFiles>>,
    /// State of the components as JSON; empty if there is none.
    state: Arc<str>,
}

/// Contents of blobs (images, screenshots) by their SHA-256.
pub type Blobs = Arc<BTreeMap<[u8; 32], Arc<[u8]>>>;

/// Stored contents of blobs.
pub trait BlobFiles: Debug + Send + Sync {
    /// Read the content of a blob and compare it with the hash; `None` if there is no such blob.
    fn read(&self, hash: &[u8; 32]) -> Result<Option<Vec<u8>>>;
}

impl Batch {
    /// Create a batch of tables in the order of [`Table::ALL`]. Their columns, types and references are checked.
    pub fn new(tables: [RecordBatch; Table::COUNT]) -> Result<Self> {
        Self::new_with(tables, &mut || Ok(()))
    }

    /// [`Batch::new`] that calls `check` between its steps and stops if it returns an error.
    pub fn new_with(mut tables: [RecordBatch; Table::COUNT], check: Check<'_>) -> Result<Self> {
        for (table, rows) in Table::ALL.into_iter().zip(&tables) {
            let found = rows.schema();
            let expected = match table {
                Table::Nodes => token_columns::schema(&token_columns::types_in(&found)?)?,
                _ => facts::schema(table, &facts::declared_in(table, &found)?),
            };
            if expected.fields() != found.fields() {
                return Err(Error::new(
                    ErrorKind::Schema,
                    format!("table {} {}", table.name(), columns_differ(&found, &expected)),
                ));
            }
        }
        for (table, rows) in Table::ALL.into_iter().zip(&mut tables) {
            if table == Table::Nodes {
                token_columns::drop_empty(rows)?;
            }
        }
        let layout = Arc::new(Layout::build(&tables, check)?);
        let (base, blobs, state) = (NextIds::default(), Blobs::default(), Arc::default());
        let (columns, source, stored_blobs) = (Vec::new(), BTreeMap::new(), Vec::new());
        Ok(Self { tables, columns, source, layout, base, blobs, stored_blobs, state })
    }

    /// Create a batch without rows.
    pub fn empty() -> Result<Self> {
        Self::new(Table::ALL.map(|table| RecordBatch::new_empty(table.schema())))
    }

    /// Return one table.
    pub fn table(&self, table: Table) -> &RecordBatch {
        &self.tables[table as usize]
    }

    pub(crate) fn tables(&self) -> &[RecordBatch; Table::COUNT] {
        &self.tables
    }

    /// Table `nodes`: runs of tokens.
    pub fn nodes(&self) -> &RecordBatch {
        self.table(Table::Nodes)
    }

    /// Table `steps`: turns of trajectories.
    pub fn steps(&self) -> &RecordBatch {
        self.table(Table::Steps)
    }

    /// Table `trajectories`.
    pub fn trajectories(&self) -> &RecordBatch {
        self.table(Table::Trajectories)
    }

    /// Table `draws`: uses of trajectories.
    pub fn draws(&self) -> &RecordBatch {
        self.table(Table::Draws)
    }

    /// Table `tasks`: task statistics.
    pub fn tasks(&self) -> &RecordBatch {
        self.table(Table::Tasks)
    }

    /// Table `decisions`: decisions of planners.
    pub fn decisions(&self) -> &RecordBatch {
        self.table(Table::Decisions)
    }

    /// Number of draws.
    pub fn num_draws(&self) -> usize {
        self.draws().num_rows()
    }

    /// Names of the components of `rewards`, if they have names.
    pub fn reward_components(&self) -> Result<Option<Vec<String>>> {
        let schema = self.steps().schema();
        let names = schema.metadata().get(REWARD_COMPONENTS).map(|names| serde_json::from_str(names));
        names.transpose().map_err(|error| {
            let text = schema.metadata().get(REWARD_COMPONENTS).map_or("", String::as_str);
            Error::corrupt(format!(
                "table steps: metadata {REWARD_COMPONENTS} is {text:.100}, not a JSON list of names ({error}); restore \
                 the batch from a copy"
            ))
        })
    }

    /// Return the declared facts of its steps and trajectories.
    pub fn facts(&self) -> Result<Facts> {
        let declared = |table| facts::declared_in(table, &self.table(table).schema());
        Ok(Facts { step: declared(Table::Steps)?, trajectory: declared(Table::Trajectories)? })
    }

    /// Return the estimator of `entropies`: `exact`, `top_10`, …
    pub fn entropies(&self) -> Option<String> {
        self.nodes().schema().metadata().get(ENTROPIES).cloned()
    }

    /// First ids of the new rows of this batch. Rows with smaller ids are in a store already.
    pub fn base(&self) -> NextIds {
        self.base
    }

    /// Return the batch with another base: rows with ids below `base` count as stored.
    #[must_use]
    pub fn with_base(&self, base: NextIds) -> Self {
        Self { base, ..self.clone() }
    }

    /// Contents of the blobs that the nodes refer to, if they are in memory.
    pub fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Return the content of a blob that the nodes refer to: from memory, or from the store that the rows were read
    /// from.
    pub fn blob(&self, hash: &[u8; 32]) -> Result<Cow<'_, [u8]>> {
        if let Some(content) = self.blobs.get(hash) {
            return Ok(Cow::Borrowed(content));
        }
        for files in &self.stored_blobs {
            if let Some(content) = files.read(hash)? {
                return Ok(Cow::Owned(content));
            }
        }
        Err(Error::not_found(format!(
            "the batch does not have blob {}; take hashes from column blobs of batch.nodes. A pickled batch of a store \
             has no blobs: read it with store.batch again",
            hex(hash)
        )))
    }

    /// Return the batch with other contents of blobs.
    #[must_use]
    pub fn with_blobs(&self, blobs: Blobs) -> Self {
        Self { blobs, ..self.clone() }
    }

    /// Return the batch with files for the blobs that are not in memory.
    #[must_use]
    pub fn with_stored_blobs(&self, files: Arc<dyn BlobFiles>) -> Self {
        Self { stored_blobs: vec![files], ..self.clone() }
    }

    /// Return the state of the components that made its columns, as JSON; empty if there is none.
    pub fn state(&self) -> &str {
        &self.state
    }

    /// Return the batch with another state of its components.
    #[must_use]
    pub fn with_state(&self, state: &str) -> Self {
        Self { state: state.into(), ..self.clone() }
    }

    /// Return the batch with one more entry about the source of its computed columns. It is written to the metadata of
    /// their tables.
    #[must_use]
    pub fn with_source(&self, key: &str, value: &str) -> Self {
        let mut batch = self.clone();
        batch.source.insert(key.to_owned(), value.to_owned());
        batch
    }
}

/// Describe the first column in which the columns of a table differ from those of the format.
fn columns_differ(found: &Schema, expected: &Schema) -> String {
    let shown = |field: Option<&FieldRef>| {
        field.map_or_else(
            || "no column".to_owned(),
            |field| {
                let nullable = if field.is_nullable() { ", nullable" } else { "" };
                format!("{:?} ({}{nullable})", field.name(), field.data_type())
            },
        )
    };
    let (found, expected) = (found.fields(), expected.fields());
    let count = found.len().max(expected.len());
    let place = (0..count).find(|&place| found.get(place) != expected.get(place)).unwrap_or_default();
    format!("has {} as column {place}; give {}, as in format v4", shown(found.get(place)), shown(expected.get(place)))
}

/// Return a hash in hexadecimal.
pub(crate) fn hex(hash: &[u8; 32]) -> String {
    let digits = hash.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(u32::from(digit), 16)).collect()
}
