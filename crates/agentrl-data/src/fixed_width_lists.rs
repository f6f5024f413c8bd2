//! Join and decode lists of fixed-width rows by the row, not by the value.
//!
//! Token columns and the columns of a teacher's likeliest tokens have this type; their values are never null. The Arrow
//! crates process all fixed-size lists by the value: `concat` writes a validity bit for each value, and decoding
//! repeats the validity of a row for each of its values to compare them.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array as _, ArrayRef, FixedSizeListArray, ListArray, RecordBatch};
use arrow_buffer::{BooleanBufferBuilder, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Schema, SchemaRef};

type Result<T> = std::result::Result<T, ArrowError>;

/// Return the field of the rows, the field of their values, and the width of a column of this type; `None` for another
/// type.
fn parts_of(kind: &DataType) -> Option<(&FieldRef, &FieldRef, i32)> {
    let DataType::List(rows) = kind else { return None };
    let DataType::FixedSizeList(item, width) = rows.data_type() else { return None };
    (!item.is_nullable() && item.data_type().is_primitive()).then_some((rows, item, *width))
}

/// Join the rows of several batches, as `arrow_select::concat::concat_batches` does.
pub(crate) fn concat_batches<'a>(
    schema: &SchemaRef,
    parts: impl IntoIterator<Item = &'a RecordBatch>,
) -> Result<RecordBatch> {
    let parts: Vec<&RecordBatch> = parts.into_iter().collect();
    let is_wide = schema.fields().iter().any(|field| parts_of(field.data_type()).is_some());
    if !is_wide || parts.is_empty() {
        return arrow_select::concat::concat_batches(schema, parts);
    }
    let column = |(place, field): (usize, &FieldRef)| {
        let of_parts: Vec<&ArrayRef> = parts.iter().map(|part| part.column(place)).collect();
        let is_alike = of_parts.iter().all(|part| part.data_type() == field.data_type());
        match parts_of(field.data_type()) {
            Some((rows, item, width)) if is_alike => joined(&of_parts, rows, item, width),
            _ => arrow_select::concat::concat(&of_parts.iter().map(AsRef::as_ref).collect::<Vec<_>>()),
        }
    };
    let columns = schema.fields().iter().enumerate().map(column).collect::<Result<Vec<_>>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns)
}

/// Join columns of this type, one after the other.
fn joined(parts: &[&ArrayRef], rows: &FieldRef, item: &FieldRef, width: i32) -> Result<ArrayRef> {
    let mut offsets = vec![0_i32];
    let mut used = Vec::with_capacity(parts.len());
    for part in parts {
        let list = part.as_list::<i32>();
        let own = list.value_offsets();
        let (begin, end) = (own[0], own[list.len()]);
        let before = offsets.last().copied().unwrap_or_default();
        if before.checked_add(end - begin).is_none() {
            return Err(ArrowError::OffsetOverflowError(before as usize + (end - begin) as usize));
        }
        offsets.extend(own[1..].iter().map(|offset| before + (offset - begin)));
        used.push(list.values().as_fixed_size_list().slice(begin as usize, (end - begin) as usize));
    }
    let values: Vec<_> = used.iter().map(|rows| rows.values().as_ref()).collect();
    let values = arrow_select::concat::concat(&values)?;
    let known = nulls(used.iter().map(|rows| (rows.nulls(), rows.len())));
    let made = FixedSizeListArray::try_new(Arc::clone(item), width, values, known)?;
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    let validity = nulls(parts.iter().map(|part| (part.nulls(), part.len())));
    Ok(Arc::new(ListArray::try_new(Arc::clone(rows), offsets, Arc::new(made), validity)?))
}

/// Join the validity of several arrays, given with their lengths.
fn nulls<'a>(parts: impl Iterator<Item = (Option<&'a NullBuffer>, usize)> + Clone) -> Option<NullBuffer> {
    if parts.clone().all(|(part, _)| part.is_none_or(|part| part.null_count() == 0)) {
        return None;
    }
    let mut made = BooleanBufferBuilder::new(parts.clone().map(|(_, length)| length).sum());
    for (part, length) in parts {
        match part {
            Some(part) => made.append_buffer(part.inner()),
            None => made.append_n(length, true),
        }
    }
    Some(NullBuffer::new(made.finish()))
}

/// Return the schema to decode a file with: the file's schema with nullable values, so that decoding compares nothing
/// by the value. [`checked`] makes the comparison.
pub(crate) fn lenient(schema: &SchemaRef) -> SchemaRef {
    if schema.fields().iter().all(|field| parts_of(field.data_type()).is_none()) {
        return Arc::clone(schema);
    }
    let field = |field: &FieldRef| match parts_of(field.data_type()) {
        None => Arc::clone(field),
        Some((rows, item, width)) => {
            let item = Arc::new(item.as_ref().clone().with_nullable(true));
            let rows = rows.as_ref().clone().with_data_type(DataType::FixedSizeList(item, width));
            Arc::new(Field::clone(field).with_data_type(DataType::List(Arc::new(rows))))
        }
    };
    let fields = schema.fields().iter().map(field).collect::<Vec<_>>();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Return a batch, decoded with the lenient schema, under its own schema.
pub(crate) fn checked(schema: &SchemaRef, batch: &RecordBatch) -> Result<RecordBatch> {
    let column = |(column, field): (&ArrayRef, &FieldRef)| {
        let Some((rows, item, width)) = parts_of(field.data_type()) else { return Ok(Arc::clone(column)) };
        let list = column.as_list::<i32>();
        let found = list.values().as_fixed_size_list();
        let made =
            FixedSizeListArray::try_new(Arc::clone(item), width, Arc::clone(found.values()), found.nulls().cloned())?;
        let list = ListArray::try_new(Arc::clone(rows), list.offsets().clone(), Arc::new(made), list.nulls().cloned())?;
        Ok(Arc::new(list) as ArrayRef)
    };
    let columns = batch.columns().iter().zip(schema.fields()).map(column).collect::<Result<Vec<_>>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns)
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, UInt8Array};

    use super::*;

    fn field(nullable: bool) -> FieldRef {
        let rows = DataType::FixedSizeList(Arc::new(Field::new("item", DataType::UInt8, nullable)), 2);
        Arc::new(Field::new("item", rows, true))
    }

    /// A batch of lists with the given numbers of rows. Every third row is null, and so is every empty list.
    fn batch(lengths: &[usize], nullable: bool) -> RecordBatch {
        let rows: usize = lengths.iter().sum();
        let values = UInt8Array::from_iter_values((0..2 * rows).map(|value| value as u8));
        let known: NullBuffer = (0..rows).map(|row| row % 3 != 1).collect();
        let DataType::FixedSizeList(item, width) = field(nullable).data_type().clone() else { panic!("rows") };
        let made = FixedSizeListArray::try_new(item, width, Arc::new(values), Some(known)).unwrap();
        let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
        let validity: NullBuffer = lengths.iter().map(|&length| length > 0).collect();
        let list = ListArray::try_new(field(nullable), offsets, Arc::new(made), Some(validity)).unwrap();
        let ids = Int64Array::from_iter_values(0..lengths.len() as i64);
        let columns: [(&str, ArrayRef, bool); 2] = [("id", Arc::new(ids), false), ("rows", Arc::new(list), true)];
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    #[test]
    fn batches_are_joined_as_arrow_joins_them() {
        let whole = batch(&[3, 0, 4, 1, 2, 5], false);
        let schema = whole.schema();
        let more = [batch(&[0], false), batch(&[2, 2], false)];
        let parts = [whole.slice(0, 2), more[0].clone(), whole.slice(2, 0), whole.slice(2, 3), more[1].clone(), whole];
        for parts in [&parts[..], &parts[3..4], &parts[1..2], &parts[2..3], &parts[..0]] {
            let expected = arrow_select::concat::concat_batches(&schema, parts).unwrap();
            assert_eq!(concat_batches(&schema, parts).unwrap(), expected);
        }
    }

    #[test]
    fn a_decoded_batch_gets_its_own_type_again() {
        let (own, decoded) = (batch(&[3, 0, 4], false), batch(&[3, 0, 4], true));
        assert_eq!(lenient(&own.schema()), decoded.schema());
        assert_ne!(own.schema(), decoded.schema());
        assert_eq!(checked(&own.schema(), &decoded).unwrap(), own);
    }
}
