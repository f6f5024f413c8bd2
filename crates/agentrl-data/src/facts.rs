//! Facts of an environment besides its reward: named numbers and keys of steps and of trajectories, declared once.
//!
//! The facts of a table are its last column, `facts`: a struct with one nullable field for each declared name, in the
//! order of the names. A table without declared facts has no such column. So all files of a store have one schema,
//! however its run was set up.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentrl_compute::keys;
use agentrl_compute::names;
use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{Array, ArrayRef, Float32Array, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use serde::{Deserialize, Serialize};

use crate::schema::{FACTS, Table, facts_of, with_field};
use crate::{Error, Result, arrow_bug};

names! {
    /// Kind of a fact.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    "kind of fact" FactKind {
        /// A 32-bit float.
        Number = "number",
        /// A text that serves as a key.
        Key = "key",
    }
}

/// Value of one fact.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// A number; NaN if unknown.
    Number(f32),
    /// A key, which can be any text.
    Key(String),
}

impl Fact {
    fn kind(&self) -> FactKind {
        match self {
            Self::Number(_) => FactKind::Number,
            Self::Key(_) => FactKind::Key,
        }
    }
}

/// The values of the facts of a step or a trajectory, by name.
pub type FactValues = BTreeMap<String, Fact>;

/// Facts of many rows as columns, one value for each row.
pub type FactColumns = BTreeMap<String, FactColumn>;

/// One fact of many rows.
#[derive(Clone, Debug)]
pub enum FactColumn {
    /// NaN if a row has no value.
    Numbers(Vec<f32>),
    /// `None` if a row has no value.
    Keys(Vec<Option<String>>),
}

impl FactColumn {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Numbers(values) => values.len(),
            Self::Keys(values) => values.len(),
        }
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Return the fact of a row; `None` if the row has no value.
    pub fn get(&self, row: usize) -> Option<Fact> {
        match self {
            Self::Numbers(values) => values.get(row).filter(|value| !value.is_nan()).copied().map(Fact::Number),
            Self::Keys(values) => values.get(row).cloned().flatten().map(Fact::Key),
        }
    }
}

/// The names and kinds of the facts of one table.
pub type Declared = BTreeMap<String, FactKind>;

/// The facts that are declared for a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Facts of steps.
    pub step: Declared,
    /// Facts of trajectories.
    pub trajectory: Declared,
}

impl Facts {
    /// Declare facts. Their names must have no other meaning.
    pub fn new(step: Declared, trajectory: Declared) -> Result<Self> {
        for name in step.keys().chain(trajectory.keys()) {
            check_name(name)?;
        }
        match step.keys().find(|name| trajectory.contains_key(*name)) {
            None => Ok(Self { step, trajectory }),
            Some(name) => Err(Error::invalid(format!(
                "facts declares {name:?} for steps and for trajectories; rename one of them"
            ))),
        }
    }

    /// Check that no fact has the name of a component of the reward.
    pub fn check_components(&self, components: &[String]) -> Result<()> {
        let named = |name: &&String| {
            let component = name.strip_prefix("reward.");
            component.is_some_and(|component| components.iter().any(|known| known == component))
        };
        match self.step.keys().chain(self.trajectory.keys()).find(named) {
            None => Ok(()),
            Some(name) => Err(Error::invalid(format!(
                "facts declares {name:?}, which is one of the forest's reward_components {components:?}; give one of \
                 the two another name"
            ))),
        }
    }

    /// Return the declared facts of a table.
    pub(crate) fn of(&self, table: Table) -> &Declared {
        static NONE: Declared = Declared::new();
        match table {
            Table::Steps => &self.step,
            Table::Trajectories => &self.trajectory,
            Table::Nodes | Table::Draws | Table::Tasks | Table::Decisions => &NONE,
        }
    }

    /// Check that facts are declared, have the declared kind, and are not infinite.
    pub(crate) fn check(&self, table: Table, values: &FactValues) -> Result<()> {
        let declared = self.of(table);
        let level = level_of(table);
        for (name, fact) in values {
            match declared.get(name) {
                None => {
                    return Err(Error::invalid(format!(
                        "facts has {name:?}, which is not declared for level {level:?} (declared: {}); declare it: \
                         Forest(facts={{\"{level}\": {{{name:?}: \"{}\"}}}})",
                        self.words(),
                        fact.kind().name()
                    )));
                }
                Some(kind) if *kind != fact.kind() => {
                    let given = match fact {
                        Fact::Number(value) => format!("the number {value}"),
                        Fact::Key(value) => format!("the text {value:?}"),
                    };
                    return Err(Error::invalid(format!(
                        "facts[{name:?}] is {given}, but it is declared as a {kind}; give a {kind}, or declare it as a {}",
                        fact.kind().name(),
                        kind = kind.name()
                    )));
                }
                Some(_) => {}
            }
            if let Fact::Number(value) = fact
                && value.is_infinite()
            {
                return Err(Error::invalid(format!(
                    "facts[{name:?}] is {value}; give a finite number that fits 32 bits, or NaN if it is unknown"
                )));
            }
        }
        Ok(())
    }

    /// Return the declaration as text, for messages.
    pub(crate) fn words(&self) -> String {
        let of = |declared: &Declared| {
            let pairs = declared.iter().map(|(name, kind)| format!("{name:?}: {:?}", kind.name()));
            pairs.collect::<Vec<_>>().join(", ")
        };
        match (self.step.is_empty(), self.trajectory.is_empty()) {
            (true, true) => "{}".to_owned(),
            (false, true) => format!("{{\"step\": {{{}}}}}", of(&self.step)),
            (true, false) => format!("{{\"trajectory\": {{{}}}}}", of(&self.trajectory)),
            (false, false) => {
                format!("{{\"step\": {{{}}}, \"trajectory\": {{{}}}}}", of(&self.step), of(&self.trajectory))
            }
        }
    }
}

fn level_of(table: Table) -> &'static str {
    if table == Table::Steps { "step" } else { "trajectory" }
}

/// Names of columns that every recipe computes or reads.
const RESERVED: [&str; 5] = ["advantage", "return", "weight", "keep", "trained_tokens"];

/// Columns of tokens whose names are not columns of a table.
const TOKEN_COLUMNS: [&str; 5] = ["token", "behaviour_logprob", "entropy", "inverse_temperature", "node_token"];

/// Return why a column cannot have a name; `None` if it can.
pub(crate) fn taken(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("is empty")
    } else if name == FACTS || Table::ALL.iter().any(|table| table.schema().column_with_name(name).is_some()) {
        Some("is a column of the tables")
    } else if TOKEN_COLUMNS.contains(&name) {
        Some("is a column of tokens")
    } else if RESERVED.contains(&name) {
        Some("is computed by recipes")
    } else if name == "batch" {
        Some("means all rows")
    } else if name.contains(',') {
        Some("contains a comma")
    } else {
        None
    }
}

fn check_name(name: &str) -> Result<()> {
    taken(name).map_or(Ok(()), |why| {
        Err(Error::invalid(format!("facts declares {name:?}, which {why}; give the fact another name")))
    })
}

fn field(declared: &Declared) -> Field {
    let fields = declared.iter().map(|(name, kind)| {
        let of_kind = match kind {
            FactKind::Number => DataType::Float32,
            FactKind::Key => DataType::Utf8,
        };
        Field::new(name, of_kind, true)
    });
    Field::new(FACTS, DataType::Struct(fields.collect::<Fields>()), true)
}

/// Return the schema of a table with its declared facts.
pub(crate) fn schema(table: Table, declared: &Declared) -> SchemaRef {
    let known = table.schema();
    if declared.is_empty() {
        return known;
    }
    with_field(&known, Arc::new(field(declared)))
}

/// Read the declared facts of a table from its columns.
pub(crate) fn declared_in(table: Table, schema: &Schema) -> Result<Declared> {
    let Some(found) = facts_of(schema) else { return Ok(Declared::new()) };
    let wrong = |why: String| Error::schema(format!("column facts of table {} {why}", table.name()));
    let DataType::Struct(fields) = found.data_type() else {
        return Err(wrong(format!("is {}; give a struct of the declared facts", found.data_type())));
    };
    let mut declared = Declared::new();
    for part in fields {
        let kind = match part.data_type() {
            DataType::Float32 => FactKind::Number,
            DataType::Utf8 => FactKind::Key,
            other => return Err(wrong(format!("has {:?} as {other}; give float32 or utf8", part.name()))),
        };
        check_name(part.name()).map_err(|error| wrong(error.to_string()))?;
        declared.insert(part.name().clone(), kind);
    }
    // Fields are in the order of their names, one for each name, and nullable.
    if found.as_ref() == &field(&declared)
        && !declared.is_empty()
        && matches!(table, Table::Steps | Table::Trajectories)
    {
        return Ok(declared);
    }
    Err(wrong("is not a column that a Forest makes; give nullable fields in the order of their names".to_owned()))
}

/// Return the column of the facts of some rows; `None` if none is declared.
pub(crate) fn column<'a>(
    declared: &Declared,
    rows: &(impl Iterator<Item = &'a FactValues> + Clone),
) -> Result<Option<ArrayRef>> {
    if declared.is_empty() {
        return Ok(None);
    }
    let columns = declared.iter().map(|(name, kind)| -> ArrayRef {
        let found = rows.clone().map(|values| values.get(name));
        match kind {
            FactKind::Number => Arc::new(
                found
                    .map(|fact| match fact {
                        Some(Fact::Number(value)) if !value.is_nan() => Some(*value),
                        _ => None,
                    })
                    .collect::<Float32Array>(),
            ),
            FactKind::Key => Arc::new(
                found
                    .map(|fact| match fact {
                        Some(Fact::Key(value)) => Some(value.as_str()),
                        _ => None,
                    })
                    .collect::<StringArray>(),
            ),
        }
    });
    let columns: Vec<_> = columns.collect();
    let DataType::Struct(fields) = field(declared).data_type().clone() else {
        return Err(Error::internal("the facts are no struct"));
    };
    StructArray::try_new(fields, columns, None).map(|column| Some(Arc::new(column) as ArrayRef)).map_err(arrow_bug)
}

/// Return the column of one fact of a table, if the table has it.
pub(crate) fn find<'a>(rows: &'a RecordBatch, name: &str) -> Option<&'a ArrayRef> {
    rows.column_by_name(FACTS)?.as_struct_opt()?.column_by_name(name)
}

/// Return the facts of a row of a table.
pub(crate) fn facts_of_row(rows: &RecordBatch, row: usize) -> FactValues {
    let Some(facts) = rows.column_by_name(FACTS).and_then(|column| column.as_struct_opt()) else {
        return FactValues::new();
    };
    let values = facts.fields().iter().zip(facts.columns()).filter(|(_, column)| column.is_valid(row));
    let values = values.filter(|_| facts.is_valid(row)).map(|(field, column)| {
        let fact = match column.as_primitive_opt::<Float32Type>() {
            Some(numbers) => Fact::Number(numbers.value(row)),
            None => Fact::Key(column.as_string::<i32>().value(row).to_owned()),
        };
        (field.name().clone(), fact)
    });
    values.collect()
}

/// Return a dense id for each of the given rows of a column of keys or whole numbers. A row without a value has an id
/// of its own.
pub(crate) fn dense(name: &str, column: &dyn Array, rows: &[usize]) -> Result<Vec<u32>> {
    let numbers = column.as_primitive_opt::<Float32Type>();
    if let Some(numbers) = numbers
        && let Some(value) = numbers.iter().flatten().find(|value| value.fract() != 0.0)
    {
        return Err(Error::invalid(format!(
            "fact {name:?} is {value}, which cannot be a key; give strings or integers"
        )));
    }
    let texts = column.as_string_opt::<i32>();
    let bytes = |row: usize| -> Vec<u8> {
        let known = column.is_valid(row);
        match (texts, numbers) {
            (Some(texts), _) if known => [b"k", texts.value(row).as_bytes()].concat(),
            // Negative zero is zero.
            (_, Some(numbers)) if known => (numbers.value(row) + 0.0).to_le_bytes().to_vec(),
            _ => [b"none".as_slice(), &(row as u64).to_le_bytes()].concat(),
        }
    };
    let texts: Vec<Vec<u8>> = rows.iter().map(|&row| bytes(row)).collect();
    Ok(keys::dense_bytes(texts.iter().map(Vec::as_slice))?.ids)
}

/// Return parts of a table with the same columns: a part without rows gets the columns of the others.
pub(crate) fn aligned(table: Table, parts: Vec<RecordBatch>) -> Result<Vec<RecordBatch>> {
    let Some(first) = parts.iter().find(|part| part.num_rows() > 0).map(RecordBatch::schema) else {
        let with = parts.iter().map(RecordBatch::schema).find(|schema| facts_of(schema).is_some());
        let schema = with.or_else(|| parts.first().map(RecordBatch::schema));
        return Ok(schema
            .map_or_else(Vec::new, |schema| parts.iter().map(|_| RecordBatch::new_empty(schema.clone())).collect()));
    };
    parts
        .into_iter()
        .map(|part| {
            if part.schema().fields() == first.fields() {
                Ok(part)
            } else if part.num_rows() == 0 {
                Ok(RecordBatch::new_empty(first.clone()))
            } else {
                let (one, other) = (declared_in(table, &first)?, declared_in(table, &part.schema())?);
                let words = |declared: Declared| match table {
                    Table::Steps => Facts { step: declared, ..Facts::default() }.words(),
                    _ => Facts { trajectory: declared, ..Facts::default() }.words(),
                };
                Err(Error::invalid(format!(
                    "the parts have different facts, {} and {}; make all with the same Forest(facts=…)",
                    words(one),
                    words(other)
                )))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(pairs: &[(&str, FactKind)]) -> Declared {
        pairs.iter().map(|&(name, kind)| (name.to_owned(), kind)).collect()
    }

    #[test]
    fn names_that_mean_something_else_are_refused() {
        let taken = [
            "",
            "reward",
            "task_id",
            "probability",
            "facts",
            "token",
            "position",
            "trainable",
            "score",
            "advantage",
            "a,b",
        ];
        for name in taken {
            let declared = declared(&[(name, FactKind::Number)]);
            assert!(Facts::new(declared.clone(), Declared::new()).is_err(), "{name}");
            assert!(Facts::new(Declared::new(), declared).is_err(), "{name}");
        }
        let twice = declared(&[("flawed", FactKind::Number)]);
        assert!(Facts::new(twice.clone(), twice.clone()).is_err());
        assert!(Facts::new(twice, declared(&[("answer", FactKind::Key)])).is_ok());
    }

    #[test]
    fn stored_values_are_read_back() -> Result<()> {
        let kinds = declared(&[("a", FactKind::Number), ("b", FactKind::Key)]);
        let rows = [
            FactValues::from([("a".to_owned(), Fact::Number(1.5)), ("b".to_owned(), Fact::Key("x".to_owned()))]),
            FactValues::new(),
            FactValues::from([("a".to_owned(), Fact::Number(f32::NAN)), ("b".to_owned(), Fact::Key(String::new()))]),
        ];
        let column = column(&kinds, &rows.iter())?.ok_or_else(|| Error::internal("no column"))?;
        let schema = Arc::new(Schema::new(vec![field(&kinds)]));
        let table = RecordBatch::try_new(schema, vec![column]).map_err(arrow_bug)?;
        assert_eq!(facts_of_row(&table, 0), rows[0]);
        assert_eq!(facts_of_row(&table, 1), FactValues::new());
        assert_eq!(facts_of_row(&table, 2), FactValues::from([("b".to_owned(), Fact::Key(String::new()))]));
        Ok(())
    }

    #[test]
    fn columns_that_no_forest_makes_are_refused() -> Result<()> {
        use crate::batch::Batch;

        let nullable = |name: &str, kind: DataType| Field::new(name, kind, true);
        let facts = |parts: Vec<Field>| Field::new(FACTS, DataType::Struct(parts.into()), true);
        let with = |table: Table, field: Field| {
            let tables = Table::ALL.map(|each| {
                let known = each.schema();
                let wrong = (each == table).then(|| with_field(&known, Arc::new(field.clone())));
                RecordBatch::new_empty(wrong.unwrap_or(known))
            });
            Batch::new(tables)
        };
        let good = facts(vec![nullable("a", DataType::Float32), nullable("b", DataType::Utf8)]);
        assert_eq!(with(Table::Steps, good.clone())?.facts()?.step.len(), 2);
        let wrong = [
            (Table::Draws, good.clone()),
            (Table::Nodes, good.clone()),
            (Table::Steps, good.clone().with_nullable(false)),
            (Table::Steps, good.with_name("other")),
            (Table::Steps, nullable(FACTS, DataType::Float32)),
            (Table::Steps, facts(Vec::new())),
            (Table::Steps, facts(vec![nullable("a", DataType::Float64)])),
            (Table::Steps, facts(vec![nullable("reward", DataType::Float32)])),
            (Table::Steps, facts(vec![Field::new("a", DataType::Float32, false)])),
            (Table::Steps, facts(vec![nullable("b", DataType::Utf8), nullable("a", DataType::Utf8)])),
            (Table::Trajectories, facts(vec![nullable("a", DataType::Utf8), nullable("a", DataType::Utf8)])),
            (Table::Trajectories, facts(vec![facts(vec![nullable("a", DataType::Utf8)])])),
        ];
        for (table, field) in wrong {
            let refused = with(table, field.clone()).err().map(|error| error.kind());
            assert_eq!(refused, Some(crate::ErrorKind::Schema), "{table:?} {field:?}");
        }
        Ok(())
    }

    #[test]
    fn a_row_without_a_key_is_alone() -> Result<()> {
        let keys = StringArray::from(vec![Some("x"), None, None, Some("x"), Some("")]);
        assert_eq!(dense("answer", &keys, &[0, 1, 1, 2, 3, 4])?, [0, 1, 1, 2, 0, 3]);
        let numbers = Float32Array::from(vec![Some(2.0), None, None, Some(2.0), Some(-0.0), Some(0.0)]);
        assert_eq!(dense("turn", &numbers, &[0, 1, 1, 2, 3, 4, 5])?, [0, 1, 1, 2, 0, 3, 3]);
        assert!(dense("turn", &Float32Array::from(vec![0.5]), &[0]).is_err());
        Ok(())
    }
}
