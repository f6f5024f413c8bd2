//! Ids of integers: dense ids, or labels below the number of rows.

use std::borrow::Cow;

use super::hash_table::{self, Keys};
use super::hasher::mix;
use crate::simd::{ascend, wide};
use crate::{Result, thread_pool};

/// An integer type of keys, of any width up to 64 bits, signed or unsigned.
pub trait Integer: Copy + Send + Sync + PartialOrd {
    /// Return a different `u64` for each different value of the type.
    fn key(self) -> u64;

    /// Return [`label_integers`] of a column of this type.
    fn labels(keys: &[Self]) -> Result<Labels<'_>> {
        labels(keys, &spans(keys)?)
    }
}

macro_rules! integers {
    ($($type:ty $({ $($labels:item)+ })?),+) => {
        $(impl Integer for $type {
            #[inline(always)]
            fn key(self) -> u64 {
                // Keeps the order of keys, so that neighbours stay neighbours.
                (i128::from(self) - i128::from(<$type>::MIN)) as u64
            }

            $($($labels)+)?
        })+
    };
}

integers!(i8, i16, i32, u8, u16, u64, i64 {
    // Most ids have this type. Compiled here, because a calling crate may be compiled for small size.
    fn labels(keys: &[Self]) -> Result<Labels<'_>> {
        labels(keys, &spans(keys)?)
    }
}, u32 {
    fn labels(keys: &[Self]) -> Result<Labels<'_>> {
        let spans = spans(keys)?;
        match spans.iter().map(|span| span.most as usize).max() {
            Some(most) if most < keys.len() => Ok(Labels::new(Cow::Borrowed(keys), most + 1, &spans)),
            _ => labels(keys, &spans),
        }
    }
});

/// Ids of rows, in no particular order and below the number of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels<'a> {
    /// One id for each row: the keys themselves if they are below the number of rows.
    pub ids: Cow<'a, [u32]>,
    /// All ids are below this number; not every smaller id occurs.
    pub count: usize,
    /// Whether the ids never decrease.
    pub sorted: bool,
}

impl<'a> Labels<'a> {
    fn new(ids: Cow<'a, [u32]>, count: usize, spans: &[KeySpan]) -> Self {
        Self { ids, count, sorted: spans.iter().all(|span| span.sorted) }
    }
}

/// Range of ids that are close together, from which their labels are computed: `label = id - least`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelRange {
    /// The smallest id, as [`Integer::key`].
    pub(super) least: u64,
    /// All labels are below this number; not every smaller label occurs.
    pub(crate) count: usize,
    /// Whether the ids never decrease.
    pub(crate) sorted: bool,
}

/// Return the dense ids of integers of any width.
///
/// ```
/// use agentrl_compute::keys::dense_integers;
///
/// let keys = dense_integers(&[7_i64, 7, -1, 7])?;
/// assert_eq!((keys.ids, keys.count), (vec![0, 0, 1, 0], 2));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `Overflow` for more than 2³² - 2 rows, here and in all functions of [`keys`](super).
pub fn dense_integers<K: Integer>(keys: &[K]) -> Result<Keys> {
    let spans = spans(keys)?;
    if spans.iter().all(|span| span.sorted) {
        return hash_table::in_runs(keys);
    }
    let (least, range) = range(&spans);
    // A table with a slot for every integer in the range is faster than hashing, if it is about as large as the column.
    if range < 2 * keys.len() as u64 + 1024 {
        return hash_table::direct(keys.len(), range as usize + 1, |row| (keys[row].key() - least) as usize);
    }
    hash_table::hashed(keys.len(), |row| keys[row].key(), |key| mix(0, key))
}

/// Return labels of integers, in no particular order: equal for equal keys, and below the number of rows. Not every
/// label occurs.
///
/// If the keys are close together, this is several times faster than [`dense_integers`]. It suffices for functions that
/// do not return one result for each group.
///
/// ```
/// use agentrl_compute::keys::label_integers;
///
/// assert_eq!(*label_integers(&[9_i64, 9, 7])?.ids, [2, 2, 0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
pub fn label_integers<K: Integer>(keys: &[K]) -> Result<Labels<'_>> {
    K::labels(keys)
}

fn labels<K: Integer>(keys: &[K], spans: &[KeySpan]) -> Result<Labels<'static>> {
    let (least, range) = range(spans);
    if range >= keys.len() as u64 {
        let Keys { ids, count } = dense_integers(keys)?;
        return Ok(Labels::new(Cow::Owned(ids), count as usize, spans));
    }
    hash_table::check(keys.len())?;
    let mut labels = vec![0; keys.len()];
    thread_pool::fill(&mut labels, |start, piece| {
        piece.iter_mut().zip(&keys[start..]).for_each(|(place, &key)| *place = label(key, least));
        Ok(())
    })?;
    Ok(Labels::new(Cow::Owned(labels), range as usize + 1, spans))
}

/// Return the label of a key that is less than 2³² above the least key.
#[inline(always)]
pub(super) fn label<K: Integer>(key: K, least: u64) -> u32 {
    (key.key() - least) as u32
}

/// Return the range of labels of keys; `None` if they are not close together.
pub(super) fn label_range<K: Integer>(keys: &[K]) -> Result<Option<LabelRange>> {
    hash_table::check(keys.len())?;
    let spans = spans(keys)?;
    let (least, range) = range(&spans);
    let sorted = spans.iter().all(|span| span.sorted);
    let labels = || LabelRange { least, count: range as usize + 1, sorted };
    Ok((range < keys.len() as u64 || keys.is_empty()).then(labels))
}

/// Range of the keys of a piece, and whether they never decrease.
struct KeySpan {
    least: u64,
    most: u64,
    sorted: bool,
}

/// Return the span of each piece. It includes the key before the piece, so that borders are compared too.
fn spans<K: Integer>(keys: &[K]) -> Result<Vec<KeySpan>> {
    thread_pool::map(thread_pool::pieces(keys.len()), |piece| {
        let keys = &keys[piece.start.saturating_sub(1)..piece.end];
        let sorted = ascend(keys);
        let (least, most) = if sorted {
            (keys[0].key(), keys[keys.len() - 1].key())
        } else {
            wide(
                #[inline(always)]
                || keys.iter().fold((u64::MAX, 0), |(a, b), key| (a.min(key.key()), b.max(key.key()))),
            )
        };
        Ok(KeySpan { least, most, sorted })
    })
}

/// Return the smallest key, and the difference between the largest and the smallest.
fn range(spans: &[KeySpan]) -> (u64, u64) {
    let least = spans.iter().map(|span| span.least).min().unwrap_or(0);
    (least, spans.iter().map(|span| span.most).max().unwrap_or(0) - least)
}
