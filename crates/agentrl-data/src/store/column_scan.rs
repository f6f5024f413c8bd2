//! Column scans: read some columns of some rows, after skipping rows by the bounds and texts of files and blocks.
//!
//! Rows are identified by their numbers, which do not change when files are merged.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use agentrl_compute::thread_pool::map;
use arrow_array::RecordBatch;

use super::Store;
use super::folders::{COMPUTED_FOLDERS, METRICS, STATES, key_of};
use super::footer::Bounds;
use super::fs::Fs;
use super::segment::{READ_BYTES, Segment, read_run, runs};
use crate::schema::Table;
use crate::{Error, Result, arrow_bug, fixed_width_lists};

/// The texts of a column, and pairs in two lists: the index of a block, and the index of a text that it contains.
pub type Texts = (Vec<String>, Vec<i64>, Vec<i64>);

/// Bounds and texts of consecutive blocks.
#[derive(Debug, Default)]
pub struct Blocks {
    /// Number of the row after each block.
    pub ends: Vec<i64>,
    /// Smallest and greatest value of each block, by filter column.
    pub bounds: BTreeMap<String, (Vec<i64>, Vec<i64>)>,
    /// Texts of each block, by text column.
    pub texts: BTreeMap<String, Texts>,
}

impl Store {
    /// Return the row numbers in each file of a folder that this store sees, with the bounds recorded in the manifest.
    pub fn ranges(&mut self, name: &str) -> Result<Vec<(Range<u64>, Bounds)>> {
        check_folder(name)?;
        self.settle()?;
        let end = self.head.end(name);
        self.located(|store| {
            let segments = store.files.of(name).iter().filter(|segment| segment.first_row < end);
            Ok(segments.map(|one| (one.first_row..one.end_row().min(end), one.bounds(name))).collect())
        })
    }

    /// Return the bounds and texts of the blocks that hold some of the given rows.
    pub fn blocks_of(&mut self, name: &str, rows: &Range<u64>) -> Result<Blocks> {
        check_folder(name)?;
        self.located(|store| {
            let mut found = Blocks::default();
            for segment in store.files.of(name).iter().filter(|segment| !shared(segment, rows).is_empty()) {
                let folder = store.path.join(name);
                let index = segment.found(&folder, |path| segment.index(store.fs.as_ref(), path))?;
                let mut end = segment.first_row;
                let before: BTreeMap<_, _> = index
                    .texts
                    .keys()
                    .map(|name| (name, found.texts.get(name).map_or(0, |known| known.0.len())))
                    .collect();
                for (name, (texts, _)) in &index.texts {
                    found.texts.entry(name.clone()).or_default().0.extend(texts.iter().cloned());
                }
                for (place, block) in index.blocks.iter().enumerate() {
                    end += block.rows;
                    if end <= rows.start || end - block.rows >= rows.end {
                        continue;
                    }
                    found.ends.push(end.min(rows.end) as i64);
                    for (name, (_, blocks)) in &index.texts {
                        let known = found.texts.entry(name.clone()).or_default();
                        for &text in &blocks[place] {
                            known.1.push(found.ends.len() as i64 - 1);
                            known.2.push((before[name] + text as usize) as i64);
                        }
                    }
                    let keys = key_of(name).map(|key| (key, block.keys));
                    let others = index.bounds.iter().map(|(name, bounds)| (name.as_str(), bounds[place]));
                    for (column, (first, last)) in others.chain(keys) {
                        let bounds = found.bounds.entry(column.to_owned()).or_default();
                        bounds.0.push(first);
                        bounds.1.push(last);
                    }
                }
            }
            // Files of older versions have fewer bounds and texts. Keep only those that all blocks have.
            found.bounds.retain(|_, (first, _)| first.len() == found.ends.len());
            found.texts.retain(|_, (_, blocks, _)| {
                blocks.iter().zip(blocks.iter().skip(1)).filter(|(one, next)| one != next).count() + 1
                    == found.ends.len()
            });
            Ok(found)
        })
    }

    /// Read columns of rows in ascending ranges. Returns a list of tables for each file that holds some of the rows; a
    /// table has those of the columns that its file has. If a file has none of the columns, its first column is
    /// returned instead, so that its rows can be counted.
    pub fn columns(&mut self, name: &str, rows: &[Range<u64>], columns: &[String]) -> Result<Vec<Vec<RecordBatch>>> {
        check_folder(name)?;
        let found = self.located(|store| {
            let segments = store.files.of(name).iter();
            let own =
                segments.map(|one| (one, rows.iter().map(|rows| shared(one, rows)).filter(|rows| !rows.is_empty())));
            let own = own.map(|(one, rows)| (one, rows.collect::<Vec<_>>())).filter(|(_, rows)| !rows.is_empty());
            let read = own.map(|(segment, rows)| {
                let read = |path: &Path| columns_of(store.fs.as_ref(), path, segment, &rows, columns);
                segment.found(&store.path.join(name), read)
            });
            read.collect::<Result<Vec<_>>>()
        })?;
        let count: u64 = found.iter().flatten().map(|part| part.num_rows() as u64).sum();
        if count == rows.iter().map(|rows| rows.end - rows.start).sum::<u64>() {
            Ok(found)
        } else {
            Err(Error::not_found(format!(
                "rows of {name} were removed since this store was opened; call refresh(), or open it again"
            )))
        }
    }
}

fn columns_of(
    fs: &dyn Fs,
    path: &Path,
    segment: &Segment,
    rows: &[Range<u64>],
    columns: &[String],
) -> Result<Vec<RecordBatch>> {
    let index = segment.index(fs, path)?;
    let fields = index.footer.schema.fields().iter().enumerate();
    let mut places: Vec<usize> =
        fields.filter(|(_, field)| columns.contains(field.name())).map(|(place, _)| place).collect();
    if places.is_empty() {
        places.push(0);
    }
    let schema = Arc::new(index.footer.schema.project(&places).map_err(arrow_bug)?);
    let (mut ends, mut end) = (Vec::<u64>::with_capacity(index.blocks.len()), segment.first_row);
    for block in index.blocks.iter() {
        end += block.rows;
        ends.push(end);
    }
    let begin = |block: usize| block.checked_sub(1).map_or(segment.first_row, |before| ends[before]);
    // Ranges ascend, so those of a block are adjacent.
    let of_block = |block: usize| {
        let (first, end) = (rows.partition_point(|range| range.end <= begin(block)), ends[block]);
        rows[first..].iter().take_while(move |range| range.start < end)
    };
    let wanted: Vec<usize> = (0..ends.len()).filter(|&block| of_block(block).next().is_some()).collect();
    // Group the runs into loads of up to READ_BYTES. Few rows are one load, which needs no threads and returns one
    // table.
    let (mut loads, mut bytes) = (Vec::<Vec<Range<usize>>>::new(), READ_BYTES);
    for run in runs(index, &wanted) {
        let more = index.blocks[run.end - 1].end - index.begin(run.start);
        if bytes + more > READ_BYTES {
            bytes = 0;
            loads.push(Vec::new());
        }
        bytes += more;
        loads.last_mut().into_iter().for_each(|load| load.push(run.clone()));
    }
    let name = path.display().to_string();
    let read = |load: Vec<Range<usize>>| {
        let mut parts = Vec::new();
        for run in load {
            read_run(fs, path, index, run, |block, bytes| {
                let all = index.footer.rows(&name, block, bytes, index.begin(block), Some(&places))?;
                if all.num_rows() as u64 != index.blocks[block].rows {
                    return Err(Error::corrupt(format!(
                        "the rows in block {block} of {name} do not match its footer; restore the file from a copy"
                    )));
                }
                let first = begin(block);
                parts.extend(of_block(block).map(|range| {
                    let (from, to) = (range.start.max(first) - first, range.end.min(ends[block]) - first);
                    all.slice(from as usize, (to - from) as usize)
                }));
                Ok(())
            })?;
        }
        fixed_width_lists::concat_batches(&schema, &parts).map_err(arrow_bug)
    };
    map(loads, |load| Ok(read(load)))?.into_iter().collect()
}

/// Return the part of a range of rows that a file holds.
fn shared(segment: &Segment, rows: &Range<u64>) -> Range<u64> {
    rows.start.max(segment.first_row)..rows.end.min(segment.end_row())
}

/// Reject the name of a folder that is not a table, a level of computed columns, the metrics or the states.
pub(super) fn check_folder(name: &str) -> Result<()> {
    if [METRICS, STATES].contains(&name) || COMPUTED_FOLDERS.iter().any(|&(folder, _)| folder == name) {
        return Ok(());
    }
    Table::from_name(name).map(drop)
}
