//! The folders of a store: one for each table, one for each level of computed columns, and the journal.

use std::sync::{Arc, LazyLock};

use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::batch::Level;
use crate::schema::{Table, list_of};

/// Folders of computed columns and the level that each holds.
pub(super) const COMPUTED: [(&str, Level); 3] =
    [("draw_columns", Level::Draw), ("step_columns", Level::Step), ("node_columns", Level::NodeToken)];

/// One row for each write: what it was, and which rows of the other folders came with it.
pub(super) const JOURNAL: &str = "journal";

/// All folders, in the order in which their rows refer to each other.
pub(super) static FOLDERS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let facts = Table::ALL.iter().map(|table| table.name());
    facts.chain(COMPUTED.iter().map(|&(name, _)| name)).chain([JOURNAL]).collect()
});

/// The column whose values are looked up in a folder; the others are read whole.
pub(super) fn key_of(folder: &str) -> Option<&'static str> {
    match folder {
        "nodes" => Some("node_id"),
        "steps" | "trajectories" => Some("trajectory_id"),
        "draws" | "draw_columns" | "step_columns" => Some("draw_id"),
        JOURNAL => Some("iteration"),
        _ => None,
    }
}

/// Columns of the tables and of the journal; computed columns have those that the recipe makes.
pub(super) fn schema_of(folder: &str) -> Option<SchemaRef> {
    if folder == JOURNAL {
        return Some(JOURNAL_SCHEMA.clone());
    }
    Table::from_name(folder).ok().map(Table::schema)
}

static JOURNAL_SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let mut fields = vec![
        Field::new("sequence", DataType::Int64, false),
        Field::new("iteration", DataType::Int64, false),
        Field::new("kind", DataType::UInt8, false)
            .with_metadata([("codes".to_owned(), "0=batch,1=partial,2=close".to_owned())].into()),
        Field::new("state", DataType::Utf8, true),
        Field::new("stored_trajectories", list_of(DataType::Int64), false),
    ];
    for folder in FOLDERS.iter().filter(|&&folder| folder != JOURNAL) {
        for bound in ["first", "end"] {
            fields.push(Field::new(format!("{folder}_{bound}"), DataType::Int64, false));
        }
    }
    // Later versions put their columns at the end.
    fields.push(Field::new("components", DataType::Utf8, true));
    Arc::new(Schema::new(fields))
});
