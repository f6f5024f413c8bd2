//! The choice of files to merge: few files, and few rewrites of each row.
//!
//! Files have orders of magnitude. Those of one order are merged when there are eight of them, with the rows
//! that are just being added, into one of the next order. So a row is written once for each order that it comes through,
//! and the number of files grows with the logarithm of the rows, up to files that are large enough to stay.
//!
//! The rest is merged on demand, at any time and any number of times: a merge makes the largest of its files at least twice as
//! large. So a row is written once for each doubling of its file.

use std::ops::Range;

use super::segment::Segment;

/// The ratio of one order of file sizes to the one before, and the number of files of one order that are merged.
const FANOUT: usize = 8;

/// Files smaller than this are of the first order: they are mostly metadata.
const SMALLEST_BYTES: u64 = 32 << 10;

/// Files are merged up to this size.
const MERGED_BYTES: u64 = 64 << 20;

/// How many of the last files are merged with new rows of some bytes, which begin with row `end`.
pub(super) fn merged_with(files: &[Segment], bytes: u64, end: u64) -> usize {
    let (mut count, mut total, mut first_row) = (0, bytes, end);
    loop {
        // Before a large file small ones would stay for good.
        let rest = &files[..files.len() - count];
        let smaller = rest.iter().rev().take_while(|file| order(file.bytes()) < order(total)).count();
        let alike = rest.iter().rev().skip(smaller).take_while(|file| order(file.bytes()) == order(total)).count();
        let more = if alike + 1 < FANOUT { smaller } else { smaller + alike };
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

/// The first neighbouring files that together are at least twice as large as the largest of them, as many of them as may
/// be in one file. After their merge there is nothing more to merge before it or with it, unless more rows come.
pub(super) fn worth_merging(files: &[Segment]) -> Option<Range<usize>> {
    (0..files.len()).find_map(|first| {
        let (mut end_row, mut bytes, mut weight, mut largest, mut found) = (files[first].first_row, 0, 0, 0, None);
        for (place, file) in files.iter().enumerate().skip(first) {
            bytes += file.bytes();
            if file.first_row != end_row || bytes > MERGED_BYTES {
                break;
            }
            // However few bytes a file has, it has to be opened.
            let own = file.bytes().max(SMALLEST_BYTES);
            (end_row, weight, largest) = (file.end_row(), weight + own, largest.max(own));
            if weight >= 2 * largest {
                found = Some(first..place + 1);
            }
        }
        found
    })
}

/// Order of magnitude of a file.
fn order(bytes: u64) -> u32 {
    (bytes / SMALLEST_BYTES).checked_ilog(FANOUT as u64).map_or(0, |order| order + 1)
}
