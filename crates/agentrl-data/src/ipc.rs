//! Tables as bytes: uncompressed Arrow IPC files, aligned so that mapped columns can be read in place.

use std::io::Cursor;

use arrow_array::RecordBatch;
use arrow_ipc::MetadataVersion;
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};

use crate::{Error, Result, arrow_bug};

/// Bodies begin at multiples of this, so that mapped columns are aligned for every reader.
const ALIGNMENT: usize = 64;

/// The bytes of an Arrow IPC file that holds one table.
pub fn encode(rows: &RecordBatch) -> Result<Vec<u8>> {
    let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5).map_err(arrow_bug)?;
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &rows.schema(), options).map_err(arrow_bug)?;
    writer.write(rows).map_err(arrow_bug)?;
    writer.finish().map_err(arrow_bug)?;
    writer.into_inner().map_err(arrow_bug)
}

/// The table of an Arrow IPC file; `name` says in errors where the bytes came from.
pub fn decode(name: &str, bytes: &[u8]) -> Result<RecordBatch> {
    let corrupt = |error| Error::corrupt(format!("{name} is not an Arrow file: {error}"));
    let reader = FileReader::try_new(Cursor::new(bytes), None).map_err(corrupt)?;
    let schema = reader.schema();
    let parts = reader.collect::<std::result::Result<Vec<_>, _>>().map_err(corrupt)?;
    arrow_select::concat::concat_batches(&schema, &parts).map_err(arrow_bug)
}
