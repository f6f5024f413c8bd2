//! Tables as bytes: uncompressed Arrow IPC files, aligned so that mapped columns can be read in place.
//!
//! Reading accepts bytes from any source. Lengths are compared with the available bytes before anything is allocated,
//! only types that this format writes are accepted, and panics of the Arrow crates become errors.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array as _, ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_ipc::{Block, MetadataVersion, root_as_footer};
use arrow_schema::{DataType, Schema, SchemaRef};
use xxhash_rust::xxh3::xxh3_64;

use crate::{Error, Result, arrow_bug, fixed_width_lists};

/// Alignment of columns in bytes, so that mapped columns are aligned for every reader.
const ALIGNMENT: usize = 64;

/// Alignment in files of many small record batches, which [`ALIGNMENT`] would fill mostly with padding.
const CLOSE_ALIGNMENT: usize = 8;

/// Approximate number of bytes of a file that are passed on at once.
const PASSED_BYTES: usize = 256 << 10;

/// Number of bytes at the end of a file that contain the length of the footer.
const TRAILER: usize = 10;

/// The footer of an Arrow file: its schema, its blocks and its metadata.
#[derive(Debug)]
pub(crate) struct Footer {
    pub(crate) schema: SchemaRef,
    /// The schema that record batches are decoded with.
    lenient: SchemaRef,
    /// Texts that the writer added.
    pub(crate) metadata: HashMap<String, String>,
    version: MetadataVersion,
    /// Position of each record batch, in order.
    blocks: Vec<Block>,
}

impl Footer {
    /// Read the footer of a file from bytes that end at the end of the file.
    pub(crate) fn read(name: &str, bytes: &[u8]) -> Result<Self> {
        guarded(name, || {
            let trailer = bytes.last_chunk::<TRAILER>().ok_or("it is shorter than a footer")?;
            let length = read_footer_length(*trailer).map_err(|error| error.to_string())?;
            let rest = bytes.len() - TRAILER;
            let start = rest.checked_sub(length).ok_or("its footer is longer than the file")?;
            let footer = root_as_footer(&bytes[start..rest]).map_err(|error| error.to_string())?;
            if footer.dictionaries().is_some_and(|found| !found.is_empty()) {
                return Err("it has dictionaries, which this format does not use".to_owned());
            }
            let schema = fb_to_schema(footer.schema().ok_or("its footer has no schema")?);
            check_types(&schema)?;
            let blocks = footer.recordBatches().map(|blocks| blocks.iter().copied().collect()).unwrap_or_default();
            let pairs = footer.custom_metadata().into_iter().flatten();
            let pairs = pairs.filter_map(|pair| Some((pair.key()?.to_owned(), pair.value()?.to_owned())));
            let schema = Arc::new(schema);
            let lenient = fixed_width_lists::lenient(&schema);
            Ok(Self { schema, lenient, metadata: pairs.collect(), version: footer.version(), blocks })
        })
    }

    /// Return the end of each record batch in the file.
    pub(crate) fn ends(&self) -> impl Iterator<Item = u64> {
        self.blocks.iter().map(|block| (block.offset() + i64::from(block.metaDataLength()) + block.bodyLength()) as u64)
    }

    /// Decode one record batch from bytes of the file that begin at `from`: all of its columns, or those with the given
    /// indices.
    pub(crate) fn rows(
        &self,
        name: &str,
        index: usize,
        bytes: &Buffer,
        from: u64,
        columns: Option<&[usize]>,
    ) -> Result<RecordBatch> {
        guarded(name, || {
            let block = self.blocks.get(index).ok_or("it has fewer record batches than rows need")?;
            let range = span(block, from, bytes.len()).ok_or("a record batch lies outside of the file")?;
            let message = bytes.slice_with_length(range.start, range.len());
            let mut decoder = FileDecoder::new(self.lenient.clone(), self.version);
            let mut schema = self.schema.clone();
            if let Some(columns) = columns {
                decoder = decoder.with_projection(columns.to_vec());
                schema = Arc::new(schema.project(columns).map_err(|error| error.to_string())?);
            }
            let rows = decoder.read_record_batch(block, &message).map_err(|error| error.to_string())?;
            let rows = rows.ok_or("a record batch is empty")?;
            if Arc::ptr_eq(&self.lenient, &self.schema) {
                return Ok(rows);
            }
            fixed_width_lists::checked(&schema, &rows).map_err(|error| error.to_string())
        })
    }
}

/// Return the byte range of a record batch in a piece of the file; `None` if the piece does not contain all of it.
fn span(block: &Block, from: u64, length: usize) -> Option<Range<usize>> {
    let start = usize::try_from(u64::try_from(block.offset()).ok()?.checked_sub(from)?).ok()?;
    let head = usize::try_from(block.metaDataLength()).ok()?;
    let end = start.checked_add(head)?.checked_add(usize::try_from(block.bodyLength()).ok()?)?;
    (end <= length).then_some(start..end)
}

/// Accept only types whose values take room in the file. A type without room (null, empty struct) could claim any
/// number of rows.
fn check_types(schema: &Schema) -> std::result::Result<(), String> {
    fn known(kind: &DataType, depth: usize) -> bool {
        use DataType::{FixedSizeBinary, FixedSizeList, Float32, Float64, Int32, Int64, List, Struct, Timestamp};
        use DataType::{UInt8, UInt16, UInt32, Utf8};
        match kind {
            Int32 | Int64 | UInt8 | UInt16 | UInt32 | Float32 | Float64 | Utf8 | Timestamp(_, None) => true,
            FixedSizeBinary(size) => *size > 0,
            List(item) => depth > 0 && known(item.data_type(), depth - 1),
            FixedSizeList(item, size) => *size > 0 && depth > 0 && known(item.data_type(), depth - 1),
            Struct(fields) => {
                depth > 0 && !fields.is_empty() && fields.iter().all(|field| known(field.data_type(), depth - 1))
            }
            _ => false,
        }
    }
    match schema.fields().iter().find(|field| !known(field.data_type(), 2)) {
        Some(field) => {
            Err(format!("column {:?} has type {}, which this format does not use", field.name(), field.data_type()))
        }
        None => Ok(()),
    }
}

thread_local! {
    /// Whether this thread reads bytes on which the Arrow crates may panic.
    static READING: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread becomes an error about the bytes that it reads. It is not reported as a panic then.
pub fn is_reading() -> bool {
    READING.get()
}

/// Turn all errors of the Arrow crates on bytes that are not an Arrow file, panics included, into one kind of error.
fn guarded<T>(name: &str, read: impl FnOnce() -> std::result::Result<T, String>) -> Result<T> {
    READING.set(true);
    let read = catch_unwind(AssertUnwindSafe(read));
    READING.set(false);
    read.unwrap_or_else(|_| Err("its parts contradict each other".to_owned())).map_err(|why| {
        Error::corrupt(format!("{name} is not an Arrow file of this format: {why}; restore it from a copy"))
    })
}

/// Return the bytes of an Arrow IPC file with record batches of one schema.
pub fn encode(schema: &Schema, parts: &[RecordBatch]) -> Result<Vec<u8>> {
    // Reserve room for the rows and their metadata, because a growing buffer is copied each time.
    let bytes: usize = parts.iter().map(size).sum();
    let mut buffer = Vec::new();
    // If this much memory is not available at once, the buffer grows as far as memory allows.
    let _ = buffer.try_reserve_exact(bytes + bytes / 16 + 4096 * parts.len() + 16_384);
    let mut writer = writer(schema, ALIGNMENT, buffer)?;
    parts.iter().try_for_each(|rows| writer.write(rows)).map_err(arrow_bug)?;
    writer.into_inner().map_err(arrow_bug)
}

fn writer(schema: &Schema, alignment: usize, buffer: Vec<u8>) -> Result<FileWriter<Vec<u8>>> {
    let options = IpcWriteOptions::try_new(alignment, false, MetadataVersion::V5).map_err(arrow_bug)?;
    FileWriter::try_new_with_options(buffer, schema, options).map_err(arrow_bug)
}

/// A file that is passed on while it is written, record batch by record batch. The bytes to copy and hash are then few
/// enough to stay in the processor's cache.
pub(crate) struct Passed<'a> {
    writer: FileWriter<Vec<u8>>,
    /// Number of bytes that were passed on, before those in the writer's buffer.
    flushed: usize,
    /// Number of bytes in the writer's buffer that were hashed.
    hashed: usize,
    to: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl<'a> Passed<'a> {
    /// Begin a file. Its bytes are passed to `to`.
    pub(crate) fn begin(schema: &Schema, to: &'a mut dyn FnMut(&[u8]) -> Result<()>) -> Result<Self> {
        Ok(Self { writer: writer(schema, CLOSE_ALIGNMENT, Vec::new())?, flushed: 0, hashed: 0, to })
    }

    /// Append a record batch. Return its end in the file, and the hash of the bytes from the end of the previous one up
    /// to there.
    pub(crate) fn write(&mut self, rows: &RecordBatch) -> Result<(u64, u64)> {
        self.writer.write(rows).map_err(arrow_bug)?;
        let bytes = self.writer.get_mut();
        let written = ((self.flushed + bytes.len()) as u64, xxh3_64(&bytes[self.hashed..]));
        self.hashed = bytes.len();
        if bytes.len() >= PASSED_BYTES {
            (self.to)(bytes)?;
            self.flushed += bytes.len();
            bytes.clear();
            self.hashed = 0;
        }
        Ok(written)
    }

    /// Write the footer, with some texts in its metadata. Return its end in the file, and its hash.
    pub(crate) fn finish(mut self, texts: impl IntoIterator<Item = (&'static str, String)>) -> Result<(u64, u64)> {
        texts.into_iter().for_each(|(key, text)| self.writer.write_metadata(key, text));
        let bytes = self.writer.into_inner().map_err(arrow_bug)?;
        (self.to)(&bytes)?;
        Ok(((self.flushed + bytes.len()) as u64, xxh3_64(&bytes[self.hashed..])))
    }
}

/// Return the approximate number of bytes that rows take in a file. Of a list column, only the values from the first to
/// the last row count.
pub(crate) fn size(rows: &RecordBatch) -> usize {
    rows.columns().iter().map(column_size).sum()
}

fn column_size(column: &ArrayRef) -> usize {
    match column.data_type() {
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            let (offsets, rows) = (list.value_offsets(), list.len());
            let (begin, end) = (offsets[0] as usize, offsets[rows] as usize);
            4 * (rows + 1) + rows / 8 + column_size(&list.values().slice(begin, end - begin))
        }
        DataType::FixedSizeList(..) => column_size(column.as_fixed_size_list().values()),
        DataType::Struct(_) => column.as_struct().columns().iter().map(column_size).sum(),
        _ => column.to_data().get_slice_memory_size().unwrap_or_default(),
    }
}

/// Read the table of an Arrow IPC file. `name` identifies the bytes in errors. Columns share the buffer's memory.
pub fn decode(name: &str, bytes: &Buffer) -> Result<RecordBatch> {
    let footer = Footer::read(name, bytes)?;
    let mut parts =
        (0..footer.blocks.len()).map(|index| footer.rows(name, index, bytes, 0, None)).collect::<Result<Vec<_>>>()?;
    match parts.len() {
        1 => Ok(parts.swap_remove(0)),
        _ => fixed_width_lists::concat_batches(&footer.schema, &parts)
            .map_err(|error| Error::corrupt(format!("{name} is too large for one table: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{Int64Array, ListArray};

    use super::*;

    #[test]
    fn a_file_that_is_passed_on_is_the_file() {
        let ids = |from: i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values(from..from + 20_000)) };
        let parts: Vec<_> = (0..5).map(|part| RecordBatch::try_from_iter([("id", ids(part))]).unwrap()).collect();
        let (mut pieces, mut written) = (Vec::<Vec<u8>>::new(), Vec::new());
        let mut to = |bytes: &[u8]| {
            pieces.push(bytes.to_vec());
            Ok(())
        };
        let mut file = Passed::begin(&parts[0].schema(), &mut to).unwrap();
        for rows in &parts {
            written.push(file.write(rows).unwrap());
        }
        written.push(file.finish([("key", "text".to_owned())]).unwrap());
        // Two record batches of 160 kB are more than the bytes that are passed on at once.
        assert_eq!(pieces.iter().map(|piece| piece.len() / 160_000).collect::<Vec<_>>(), [2, 2, 1]);
        let bytes = pieces.concat();
        assert_eq!(written.last().unwrap().0, bytes.len() as u64);
        let mut begin = 0;
        for (end, hash) in written {
            assert_eq!(hash, xxh3_64(&bytes[begin as usize..end as usize]));
            begin = end;
        }
        let (footer, bytes) = (Footer::read("file", &bytes).unwrap(), Buffer::from(bytes));
        assert_eq!(footer.metadata["key"], "text");
        assert_eq!((0..5).map(|part| footer.rows("file", part, &bytes, 0, None).unwrap()).collect::<Vec<_>>(), parts);
        let mut refuse = |_: &[u8]| Err(Error::invalid("full"));
        let mut file = Passed::begin(&parts[0].schema(), &mut refuse).unwrap();
        file.write(&parts[0]).unwrap();
        assert_eq!(file.write(&parts[1]).unwrap_err().to_string(), "full");
    }

    #[test]
    fn room_is_made_for_the_rows_and_not_for_what_they_are_cut_from() {
        let lists = (0..4096).map(|row| Some((0..64).map(move |place| Some(row + place)).collect::<Vec<_>>()));
        let columns: [(&str, ArrayRef); 2] = [
            ("id", Arc::new(Int64Array::from_iter_values(0..4096))),
            ("tokens", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
        ];
        let rows = RecordBatch::try_from_iter(columns).unwrap();
        // 8 bytes of id and 4 of an offset per row, one more offset, a validity bit per row, and 64 tokens of 4 bytes
        // per row.
        assert_eq!(size(&rows.slice(100, 10)), 10 * 8 + (4 * 11 + 1) + 640 * 4);
        let parts: Vec<_> = (0..256).map(|part| rows.slice(16 * part, 16)).collect();
        let written = encode(&rows.schema(), &parts).unwrap();
        let (whole, room) = (written.len(), written.capacity());
        assert!(whole > 4096 * 64 * 4 && room < 3 * whole, "{room} bytes for {whole}");
        assert_eq!(decode("rows", &written.into()).unwrap(), rows);
    }
}
