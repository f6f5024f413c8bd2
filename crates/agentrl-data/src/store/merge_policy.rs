//! Selection of files to merge, so that files are few and each row is rewritten few times.
//!
//! Files have orders of magnitude. If the new rows and the last files make eight files of one order, a commit merges
//! them into one file of the next order. So a row is written once for each order, and the number of files grows with
//! the logarithm of the number of rows, until files reach their largest size.
//!
//! Compaction merges the rest on demand, at any time and any number of times. A merged file is at least twice as large
//! as the largest file it replaces, so a row is written once for each doubling of its file.

use std::ops::Range;

use super::segment::Segment;

/// Ratio between consecutive orders of file sizes, and number of files of one order that are merged.
const FANOUT: usize = 8;

/// Files smaller than this have the first order, because they consist mostly of metadata.
const SMALLEST_BYTES: u64 = 32 << 10;

/// Largest size of a merged file in bytes.
const MERGED_BYTES: u64 = 64 << 20;

/// Return how many of the last files are merged with `bytes` bytes of new rows, which begin with row `end`.
pub(super) fn merged_with(files: &[Segment], bytes: u64, end: u64) -> usize {
    let (mut count, mut total, mut first_row) = (0, bytes, end);
    loop {
        // Merge small files before a larger one too, because they would never be merged later.
        let rest = &files[..files.len() - count];
        let smaller = rest.iter().rev().take_while(|file| order(file.bytes()) < order(total)).count();
        let similar = rest.iter().rev().skip(smaller).take_while(|file| order(file.bytes()) == order(total)).count();
        let more = if similar + 1 < FANOUT { smaller } else { smaller + similar };
        let taken = &rest[rest.len() - more..];
        for file in taken.iter().rev() {
            if file.end_row() != first_row || total + file.bytes() > MERGED_BYTES {
                return count;
            }
            (count, total, first_row) = (count + 1, total + file.bytes(), file.first_row);
        }
        if taken.is_empty() {
            return count;
        }
    }
}

/// Return the first neighbouring files that together are at least twice as large as the largest of them, and as many of
/// them as fit into one file. After their merge, nothing before it or with it is left to merge until more rows are
/// added.
pub(super) fn worth_merging(files: &[Segment]) -> Option<Range<usize>> {
    (0..files.len()).find_map(|first| {
        let (mut end_row, mut bytes, mut weight, mut largest, mut found) = (files[first].first_row, 0, 0, 0, None);
        for (place, file) in files.iter().enumerate().skip(first) {
            bytes += file.bytes();
            if file.first_row != end_row || bytes > MERGED_BYTES {
                break;
            }
            // A file has a minimum weight, because even a small one has to be opened.
            let own = file.bytes().max(SMALLEST_BYTES);
            (end_row, weight, largest) = (file.end_row(), weight + own, largest.max(own));
            if weight >= 2 * largest {
                found = Some(first..place + 1);
            }
        }
        found
    })
}

/// Return the order of magnitude of a file size.
fn order(bytes: u64) -> u32 {
    (bytes / SMALLEST_BYTES).checked_ilog(FANOUT as u64).map_or(0, |order| order + 1)
}
