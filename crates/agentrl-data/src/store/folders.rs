//! The folders of a store: tables, levels of computed columns, metrics, states and the write log.

use std::sync::{Arc, LazyLock};

use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::batch::Level;
use crate::schema::{Table, list_of};

/// Folders of computed columns and the level that each holds.
pub(super) const COMPUTED_FOLDERS: [(&str, Level); 3] =
    [("draw_columns", Level::Draw), ("step_columns", Level::Step), ("node_columns", Level::NodeToken)];

/// The metrics of closed iterations: one row for each number.
pub(super) const METRICS: &str = "metrics";

/// The state of components as arrays: one row for each piece of an array.
pub(super) const STATES: &str = "states";

/// The write log: one row for each append and each closed iteration, with the numbers of the rows that it added to the
/// other folders.
pub(super) const WRITE_LOG: &str = "journal";

/// All folders, in the order in which their rows refer to each other.
pub(super) static FOLDERS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let facts = Table::ALL.iter().map(|table| table.name());
    facts.chain(COMPUTED_FOLDERS.iter().map(|&(name, _)| name)).chain([METRICS, STATES, WRITE_LOG]).collect()
});

/// Return the key column of a folder, by which its rows are looked up. Folders without one are read whole.
pub(super) fn key_of(folder: &str) -> Option<&'static str> {
    match folder {
        "nodes" => Some("node_id"),
        "steps" | "trajectories" => Some("trajectory_id"),
        "draws" | "draw_columns" | "step_columns" => Some("draw_id"),
        METRICS | STATES | WRITE_LOG => Some("iteration"),
        _ => None,
    }
}

/// Columns by which the rows of a run are filtered. A manifest records their bounds in each file.
pub(super) const CHOSEN_BY: [&str; 3] = ["iteration", "group_id", "trajectory_id"];

/// Return whether a folder keeps its rows when iterations are dropped. These rows are few and document the run.
pub(super) fn is_kept(folder: &str) -> bool {
    [METRICS, WRITE_LOG].contains(&folder)
}

/// Return the folders whose row ranges have been columns of the write log since its first version.
pub(super) fn in_first_version() -> impl Iterator<Item = &'static str> {
    FOLDERS.iter().copied().filter(|&folder| !is_kept(folder) && folder != STATES)
}

/// Return the columns of a table, the metrics, the states or the write log; `None` for computed columns, which depend
/// on the recipe.
pub(super) fn schema_of(folder: &str) -> Option<SchemaRef> {
    match folder {
        METRICS => Some(METRICS_SCHEMA.clone()),
        STATES => Some(STATES_SCHEMA.clone()),
        WRITE_LOG => Some(WRITE_LOG_SCHEMA.clone()),
        _ => Table::from_name(folder).ok().map(Table::schema),
    }
}

static METRICS_SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("iteration", DataType::Int64, false),
        Field::new("name", DataType::Utf8, false),
        Field::new("value", DataType::Float64, false),
    ]))
});

static STATES_SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("iteration", DataType::Int64, false),
        Field::new("path", DataType::Utf8, false),
        Field::new("kind", DataType::UInt8, false)
            .with_metadata([("codes".to_owned(), "0=base,1=delta,2=gone".to_owned())].into()),
        Field::new("dtype", DataType::Utf8, false),
        Field::new("width", DataType::Int64, true),
        Field::new("rows", DataType::Int64, false),
        Field::new("first", DataType::Int64, false),
        Field::new("indices", list_of(DataType::Int64), false),
        Field::new("values", list_of(DataType::UInt8), false),
    ]))
});

static WRITE_LOG_SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let mut fields = vec![
        Field::new("sequence", DataType::Int64, false),
        Field::new("iteration", DataType::Int64, false),
        Field::new("kind", DataType::UInt8, false)
            .with_metadata([("codes".to_owned(), "0=batch,1=partial,2=close".to_owned())].into()),
        Field::new("state", DataType::Utf8, true),
        Field::new("stored_trajectories", list_of(DataType::Int64), false),
    ];
    for folder in in_first_version() {
        for bound in ["first", "end"] {
            fields.push(Field::new(format!("{folder}_{bound}"), DataType::Int64, false));
        }
    }
    // Columns of later versions come last.
    fields.push(Field::new("components", DataType::Utf8, true));
    for (folder, bound) in [METRICS, STATES].iter().flat_map(|folder| [(folder, "first"), (folder, "end")]) {
        fields.push(Field::new(format!("{folder}_{bound}"), DataType::Int64, true));
    }
    Arc::new(Schema::new(fields))
});
