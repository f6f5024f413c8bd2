//! A pool of threads for large columns.
//!
//! Work is split into pieces of fixed size, independent of the number of threads, and results are returned in the order
//! of the pieces. So the same columns give the same bits on 1 thread and on 64.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{mem, process, thread};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::{Error, Result};

/// Rows of one piece. Waking a thread costs up to 40 µs and a row of most kernels 1 to 5 ns, so fewer rows are
/// not worth a thread.
pub(crate) const PIECE: usize = 1 << 15;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread starts no other threads; see [`SingleThreaded`].
    static SINGLE_THREADED: Cell<bool> = const { Cell::new(false) };
}

/// Guard that keeps its thread from starting others until it is dropped, because the thread is one of several that
/// share some work, or because the work is too small. A panic of the work drops it too.
pub(crate) struct SingleThreaded {
    before: bool,
}

impl SingleThreaded {
    pub(crate) fn begin() -> Self {
        Self { before: SINGLE_THREADED.replace(true) }
    }
}

impl Drop for SingleThreaded {
    fn drop(&mut self) {
        SINGLE_THREADED.set(self.before);
    }
}

/// Worker threads besides the calling one. One call holds them at a time, so a short call never waits for the long work
/// of another.
#[derive(Debug)]
struct Helpers {
    /// The process in which the threads run: a forked child has none of its parent's threads.
    process: u32,
    pool: ThreadPool,
}

/// Idle helpers. No call waits for the lock, because a forked child may inherit it locked forever.
static IDLE: Mutex<Option<Helpers>> = Mutex::new(None);

impl Helpers {
    /// Return `count` helpers, reused from the last call or new; `None` if the system refuses to start them.
    fn take(count: usize) -> Option<Self> {
        let process = process::id();
        let idle = IDLE.try_lock().ok().and_then(|mut idle| idle.take());
        match idle {
            Some(helpers) if helpers.process != process => mem::forget(helpers),
            Some(helpers) if helpers.pool.current_num_threads() == count => return Some(helpers),
            _ => {}
        }
        let pool =
            ThreadPoolBuilder::new().num_threads(count).thread_name(|_| "agentrl_core".to_owned()).build().ok()?;
        Some(Self { process, pool })
    }

    /// Keep the helpers for the next call.
    fn put_back(self) {
        if let Ok(mut idle) = IDLE.try_lock() {
            *idle = Some(self);
        }
    }
}

/// Return the number of threads for large columns: set by [`set_threads`], otherwise the available cores.
pub fn threads() -> usize {
    let set = THREADS.load(Ordering::Relaxed);
    if set > 0 {
        return set;
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // The query costs several system calls, so its result is kept, unless another thread has set a number meanwhile.
    THREADS.compare_exchange(0, cores, Ordering::Relaxed, Ordering::Relaxed).err().unwrap_or(cores)
}

/// Set the number of threads for all later calls in this process. Results do not depend on it.
///
/// # Errors
/// `InvalidInput` for 0.
pub fn set_threads(count: usize) -> Result<()> {
    if count == 0 {
        return Err(Error::invalid("threads is 0; give 1 or more"));
    }
    THREADS.store(count, Ordering::Relaxed);
    Ok(())
}

/// Apply `work` to every item and return the results in item order. If several items fail, the first error is returned.
///
/// # Errors
/// The error of `work`.
pub fn map<I: Send, R: Send>(items: Vec<I>, work: impl Fn(I) -> Result<R> + Sync) -> Result<Vec<R>> {
    let all = threads();
    let threads = all.min(items.len());
    if threads < 2 || SINGLE_THREADED.get() {
        return items.into_iter().map(work).collect();
    }
    let queue = Mutex::new(items.into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    // A separate closure, so that the lock is released before the item is processed.
    let next = || locked(&queue).next();
    let run = || {
        let _alone = SingleThreaded::begin();
        let mut own = Vec::new();
        while let Some((place, item)) = next() {
            own.push((place, work(item)));
        }
        locked(&done).append(&mut own);
    };
    // If the system refuses threads, this thread does all the work.
    if let Some(helpers) = Helpers::take(all - 1) {
        helpers.pool.in_place_scope(|scope| {
            (1..threads).for_each(|_| scope.spawn(|_| run()));
            run();
        });
        helpers.put_back();
    } else {
        run();
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|&(place, _)| place);
    done.into_iter().map(|(_, result)| result).collect()
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Split rows into pieces of [`PIECE`] rows.
pub(crate) fn pieces(rows: usize) -> Vec<Range<usize>> {
    (0..rows).step_by(PIECE).map(|start| start..rows.min(start + PIECE)).collect()
}

/// Fill a column piece by piece; `work` gets the first row of a piece, and the piece.
pub(crate) fn fill<T: Send>(out: &mut [T], work: impl Fn(usize, &mut [T]) -> Result<()> + Sync) -> Result<()> {
    if out.len() <= PIECE {
        return work(0, out);
    }
    let items: Vec<_> = out.chunks_mut(PIECE).enumerate().map(|(place, piece)| (place * PIECE, piece)).collect();
    map(items, |(start, piece)| work(start, piece)).map(drop)
}

/// Split ragged rows into pieces with at least [`PIECE`] values each, except the last. Row `i` is
/// `offset(i)..offset(i + 1)`.
pub(crate) fn row_pieces(rows: usize, offset: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
    let (mut found, mut first) = (Vec::new(), 0);
    for next in 1..=rows {
        if next == rows || offset(next) - offset(first) >= PIECE {
            found.push(first..next);
            first = next;
        }
    }
    found
}

/// Fill a column of ragged rows; `work` gets a range of rows and their part of the column.
///
/// Offsets start at 0, do not decrease, and end at the length of the column.
pub(crate) fn fill_rows<T: Send>(
    offsets: &[i64],
    mut out: &mut [T],
    work: impl Fn(Range<usize>, &mut [T]) -> Result<()> + Sync,
) -> Result<()> {
    let mut items = Vec::new();
    for rows in row_pieces(offsets.len() - 1, |row| offsets[row] as usize) {
        let (piece, rest) = out.split_at_mut((offsets[rows.end] - offsets[rows.start]) as usize);
        items.push((rows, piece));
        out = rest;
    }
    map(items, |(rows, piece)| work(rows, piece)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn results_stand_in_order_whatever_the_number_of_threads() -> Result<()> {
        for count in [1, 2, 4, 7] {
            set_threads(count)?;
            assert_eq!(threads(), count);
            let squares = map((0..100_u64).collect(), |item| Ok(item * item))?;
            assert!(squares.into_iter().eq((0..100).map(|item| item * item)));
            let mut column = vec![0; 3 * PIECE + 5];
            fill(&mut column, |start, piece| {
                piece.iter_mut().enumerate().for_each(|(row, value)| *value = start + row);
                Ok(())
            })?;
            assert!(column.iter().copied().eq(0..column.len()));
        }
        assert!(set_threads(0).is_err());
        Ok(())
    }

    #[test]
    fn the_first_error_counts_and_a_panic_is_passed_on() -> Result<()> {
        set_threads(3)?;
        let late_first =
            |item: u32| if item < 40 { Ok(item) } else { Err(Error::invalid(format!("{item} is too much"))) };
        let message = map((0..100).collect(), late_first).map_err(|error| error.to_string());
        assert_eq!(message, Err("40 is too much".to_owned()));
        let panic = std::panic::catch_unwind(|| map(vec![1, 2, 3], |item: i32| -> Result<i32> { panic!("at {item}") }));
        assert!(panic.is_err());
        assert!(!SINGLE_THREADED.get(), "threads are shared again after a panic");
        Ok(())
    }

    /// If one call keeps all its helpers busy, another call gets its own.
    #[test]
    fn a_call_does_not_wait_for_another() -> Result<()> {
        set_threads(2)?;
        let (begun, begins) = mpsc::channel();
        let (end, ends) = mpsc::channel();
        let ends = Mutex::new(ends);
        let long = |item: i32| {
            let _ = begun.send(());
            let _ = locked(&ends).recv();
            Ok(item)
        };
        thread::scope(|scope| {
            let other = scope.spawn(|| map(vec![1, 2], long));
            for _ in 0..2 {
                begins.recv().map_err(|error| Error::invalid(error.to_string()))?;
            }
            let squares = map((0..100).collect(), |item: u64| Ok(item * item));
            (0..2).for_each(|_| {
                let _ = end.send(());
            });
            assert!(matches!(other.join(), Ok(Ok(items)) if items == [1, 2]));
            assert!(squares?.into_iter().eq((0..100).map(|item| item * item)));
            Ok(())
        })
    }

    #[test]
    fn pieces_cover_the_rows() -> Result<()> {
        assert!(pieces(0).is_empty());
        assert_eq!(pieces(PIECE + 1), [0..PIECE, PIECE..PIECE + 1]);
        let offsets = [0, 0, 5, PIECE as i64 + 1, PIECE as i64 + 3, PIECE as i64 + 3];
        let mut rows_of = vec![0; PIECE + 3];
        fill_rows(&offsets, &mut rows_of, |rows, piece| {
            let start = offsets[rows.start];
            for row in rows {
                piece[(offsets[row] - start) as usize..(offsets[row + 1] - start) as usize].fill(row);
            }
            Ok(())
        })?;
        assert!(
            offsets
                .windows(2)
                .enumerate()
                .all(|(row, pair)| { rows_of[pair[0] as usize..pair[1] as usize].iter().all(|&found| found == row) })
        );
        fill_rows(&[0], &mut [0_u8; 0], |_, _| Err(Error::invalid("there is no row")))
    }
}
