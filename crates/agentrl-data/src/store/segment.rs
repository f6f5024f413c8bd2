//! One sealed Arrow IPC file.

use std::io::Cursor;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_ipc::MetadataVersion;
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};

use crate::{Error, Result, arrow_bug};

/// Bodies begin at multiples of this, so that mapped columns are aligned for every reader.
const ALIGNMENT: usize = 64;

pub(super) fn encode(rows: &RecordBatch) -> Result<Vec<u8>> {
    let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5).map_err(arrow_bug)?;
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &rows.schema(), options).map_err(arrow_bug)?;
    writer.write(rows).map_err(arrow_bug)?;
    writer.finish().map_err(arrow_bug)?;
    writer.into_inner().map_err(arrow_bug)
}

pub(super) fn decode(path: &Path, bytes: Vec<u8>) -> Result<Vec<RecordBatch>> {
    let corrupt = |error| Error::corrupt(format!("{} is not an Arrow file: {error}", path.display()));
    let reader = FileReader::try_new(Cursor::new(bytes), None).map_err(corrupt)?;
    reader.map(|rows| rows.map_err(corrupt)).collect()
}
