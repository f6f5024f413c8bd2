//! Which files are merged when rows are added: few files, and few times that a row is written.
//!
//! Files are told apart by orders of magnitude. Those of one order are merged when there are eight of them, with the rows
//! that are just being added, into one of the next order. So a row is written once for each order that it comes through,
//! and the number of files grows with the logarithm of the rows, up to files that are large enough to stay.

use super::segment::Segment;

/// So many times larger is the next order, and so many files of one order are merged.
const FANOUT: usize = 8;

/// Files smaller than this are of the first order: they are mostly what is said about their rows.
const SMALLEST_BYTES: u64 = 32 << 10;

/// Files are merged up to this size.
pub(super) const MERGED_BYTES: u64 = 64 << 20;

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

/// Order of magnitude of a file.
fn order(bytes: u64) -> u32 {
    (bytes / SMALLEST_BYTES).checked_ilog(FANOUT as u64).map_or(0, |order| order + 1)
}
