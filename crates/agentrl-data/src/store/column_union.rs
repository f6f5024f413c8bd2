//! Rows of batches with different columns or different metadata, in one file.
//!
//! The file has the columns of all its rows, with nulls in rows that lack a column. Its metadata records the columns of
//! each part of the rows. A reader gets the columns that were written; stock tools see one table.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, new_null_array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use serde::{Deserialize, Serialize};

use crate::{Error, Result, arrow_bug};

/// The key of [`Parts`] in a file's metadata.
const PARTS_KEY: &str = "agentrl_parts";

/// Suffix in the name of a list column if a column of plain values has the same name.
const TOKENS_SUFFIX: &str = "_of_tokens";

/// The columns of each part of the rows in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Parts {
    #[serde(rename = "kinds")]
    column_sets: Vec<ColumnSet>,
    /// The index in `column_sets` and the number of rows of each part, in row order.
    rows: Vec<(usize, u64)>,
}

/// The columns and metadata of a batch as it was written.
#[derive(Debug, Serialize, Deserialize)]
struct ColumnSet {
    /// Name, index in the file, and nullability of each column.
    columns: Vec<(String, usize, bool)>,
    metadata: BTreeMap<String, String>,
}

/// Rows of one file: its schema, and parts with this schema.
pub(super) type FileRows = (SchemaRef, Vec<RecordBatch>);

/// Combine parts into as few files as possible: one, unless a column changes its type.
pub(super) fn merge_columns(parts: Vec<RecordBatch>) -> Result<Vec<FileRows>> {
    let mut files: Vec<Vec<RecordBatch>> = Vec::new();
    let mut types: HashMap<(String, bool), DataType> = HashMap::new();
    for part in parts {
        let schema = part.schema();
        let fits =
            schema.fields().iter().all(|field| types.get(&key(field)).is_none_or(|kind| kind == field.data_type()));
        if !fits {
            types.clear();
        }
        types.extend(schema.fields().iter().map(|field| (key(field), field.data_type().clone())));
        match files.last_mut().filter(|_| fits) {
            Some(file) => file.push(part),
            None => files.push(vec![part]),
        }
    }
    files.into_iter().map(merge_into_one).collect()
}

/// Return the key of a column: its name, and whether it is a list of token values.
fn key(field: &Field) -> (String, bool) {
    (field.name().clone(), matches!(field.data_type(), DataType::List(_)))
}

fn merge_into_one(parts: Vec<RecordBatch>) -> Result<FileRows> {
    let Some(first) = parts.first().map(RecordBatch::schema) else {
        return Err(Error::internal("a file has no rows"));
    };
    if parts.iter().all(|part| part.schema() == first) && !first.metadata().contains_key(PARTS_KEY) {
        return Ok((first, parts));
    }
    let schemas = parts.iter().map(RecordBatch::schema);
    let mut places: HashMap<(String, bool), usize> = HashMap::new();
    let mut fields: Vec<Field> = Vec::new();
    let (mut missing, mut metadata) = (HashSet::new(), first.metadata().clone());
    for schema in schemas {
        metadata.retain(|key, text| schema.metadata().get(key) == Some(text));
        let before = fields.len();
        for field in schema.fields() {
            places.entry(key(field)).or_insert_with(|| {
                fields.push(field.as_ref().clone());
                fields.len() - 1
            });
        }
        let own: HashSet<_> = schema.fields().iter().map(|field| places[&key(field)]).collect();
        // A column is nullable if this part lacks it, or if all earlier parts lack it.
        missing.extend((0..fields.len()).filter(|place| !own.contains(place)));
        if before > 0 {
            missing.extend(before..fields.len());
        }
    }
    for (place, field) in fields.iter_mut().enumerate() {
        field.set_nullable(field.is_nullable() || missing.contains(&place));
        if let (name, true) = key(field)
            && places.contains_key(&(name, false))
        {
            field.set_name(format!("{}{TOKENS_SUFFIX}", field.name()));
        }
    }
    let (mut column_sets, mut known, mut rows) = (Vec::new(), HashMap::new(), Vec::new());
    for part in &parts {
        let schema = part.schema();
        let columns =
            schema.fields().iter().map(|field| (field.name().clone(), places[&key(field)], field.is_nullable()));
        let columns = ColumnSet {
            columns: columns.collect(),
            metadata: schema.metadata().iter().map(|(key, text)| (key.clone(), text.clone())).collect(),
        };
        let number = *known.entry(to_json(&columns)?).or_insert_with(|| {
            column_sets.push(columns);
            column_sets.len() - 1
        });
        match rows.last_mut().filter(|(last, _)| *last == number) {
            Some((_, count)) => *count += part.num_rows() as u64,
            None => rows.push((number, part.num_rows() as u64)),
        }
    }
    metadata.insert(PARTS_KEY.to_owned(), to_json(&Parts { column_sets, rows })?);
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    let parts = parts.iter().map(|part| {
        let mut columns: Vec<Option<ArrayRef>> = vec![None; schema.fields().len()];
        for (field, column) in part.schema().fields().iter().zip(part.columns()) {
            columns[places[&key(field)]] = Some(column.clone());
        }
        let columns = columns.into_iter().zip(schema.fields());
        let columns =
            columns.map(|(column, field)| column.unwrap_or_else(|| new_null_array(field.data_type(), part.num_rows())));
        RecordBatch::try_new(schema.clone(), columns.collect()).map_err(arrow_bug)
    });
    let parts = parts.collect::<Result<Vec<_>>>()?;
    Ok((schema, parts))
}

fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| Error::internal("columns cannot be written as JSON").with_source(error))
}

impl Parts {
    /// Read the parts from a file's metadata; `None` if all its rows have the same columns.
    pub(super) fn of(name: &str, schema: &Schema) -> Result<Option<Self>> {
        let Some(text) = schema.metadata().get(PARTS_KEY) else { return Ok(None) };
        let parts = serde_json::from_str(text);
        parts.map(Some).map_err(|error| {
            Error::corrupt(format!(
                "the parts of {name} do not match its metadata ({error}); restore the file from a copy"
            ))
        })
    }

    /// Return rows that begin with row `from` of the file, divided into parts with their original columns.
    pub(super) fn divide(&self, name: &str, rows: &RecordBatch, from: u64) -> Result<Vec<RecordBatch>> {
        let corrupt =
            || Error::corrupt(format!("the parts of {name} do not match its metadata; restore the file from a copy"));
        let (mut divided, mut begin, mut at) = (Vec::new(), 0_u64, 0_usize);
        for &(number, count) in &self.rows {
            let end = begin.checked_add(count).ok_or_else(corrupt)?;
            let wanted = from + at as u64;
            if at < rows.num_rows() && begin <= wanted && wanted < end {
                let length = (end - wanted).min((rows.num_rows() - at) as u64) as usize;
                let columns = self.column_sets.get(number).ok_or_else(corrupt)?;
                divided.push(columns.restore(&rows.slice(at, length)).map_err(|_| corrupt())?);
                at += length;
            }
            begin = end;
        }
        if at == rows.num_rows() { Ok(divided) } else { Err(corrupt()) }
    }
}

impl ColumnSet {
    fn restore(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let schema = rows.schema();
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for (name, place, nullable) in &self.columns {
            let field = schema.fields().get(*place).ok_or_else(|| Error::corrupt("a column is missing"))?;
            fields.push(field.as_ref().clone().with_name(name).with_nullable(*nullable));
            columns.push(rows.column(*place).clone());
        }
        let metadata = self.metadata.clone().into_iter().collect();
        RecordBatch::try_new(Arc::new(Schema::new_with_metadata(fields, metadata)), columns).map_err(arrow_bug)
    }
}
