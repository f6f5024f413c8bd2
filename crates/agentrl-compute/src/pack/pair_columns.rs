//! Sum columns of items into columns of pairs; products of weight and advantage are not stored.

use crate::{Error, Float, Result, thread_pool};

/// Weights and advantages of items, whose products are summed.
#[derive(Clone, Copy, Debug)]
pub struct Credit<'a> {
    /// Loss weight, with its denominator.
    pub weights: &'a [f64],
    /// Another factor of the advantage; `None` means 1.
    pub factors: Option<&'a [f32]>,
    /// Advantage of each item.
    pub advantages: &'a [f32],
    /// Gain of items with two advantages, a gain and a loss that are clipped separately; `None` uses the advantage if
    /// it is above 0.
    pub gains: Option<&'a [f32]>,
    /// Loss of such items; `None` uses the advantage if it is below 0.
    pub losses: Option<&'a [f32]>,
}

impl Credit<'_> {
    /// Return the two products of an item, with its gain and with its loss. A negative factor turns a gain into a loss.
    fn products(&self, item: usize) -> [f64; 2] {
        let factor = self.weights[item] * self.factors.map_or(1.0, |factors| f64::from(factors[item]));
        let advantage = f64::from(self.advantages[item]);
        let gain = self.gains.map_or(above(advantage), |gains| f64::from(gains[item]));
        let loss = self.losses.map_or(below(advantage), |losses| f64::from(losses[item]));
        [gain * factor, loss * factor]
    }

    fn len(&self) -> usize {
        let optional = [self.factors, self.gains, self.losses].into_iter().flatten().map(<[f32]>::len);
        optional.chain([self.weights.len(), self.advantages.len()]).min().unwrap_or(0)
    }
}

/// A column of pairs, made from columns of items. Sums run over the items of a pair, in f64 and in the order of the
/// items.
#[derive(Clone, Copy, Debug)]
pub enum Stream<'a> {
    /// Sum of an f32 column.
    SumSingle(&'a [f32]),
    /// Sum of an f64 column.
    SumDouble(&'a [f64]),
    /// Sum of weights, each times its factor.
    Weight {
        /// Loss weight, with its denominator.
        weights: &'a [f64],
        /// Factor of each weight; `None` means 1.
        factors: Option<&'a [f32]>,
    },
    /// Sum of the products of weight and advantage that are above 0.
    Positive(Credit<'a>),
    /// Sum of the products of weight and advantage that are below 0.
    Negative(Credit<'a>),
    /// Value of the first item.
    First(&'a [f32]),
}

impl Stream<'_> {
    fn len(&self) -> usize {
        match self {
            Self::SumSingle(column) | Self::First(column) => column.len(),
            Self::SumDouble(column) => column.len(),
            Self::Weight { weights, factors } => factors.map_or(usize::MAX, <[f32]>::len).min(weights.len()),
            Self::Positive(credit) | Self::Negative(credit) => credit.len(),
        }
    }

    /// Write the values of consecutive pairs.
    fn fill(&self, offsets: &[i64], items: &[i64], out: &mut [f32]) {
        match self {
            Self::SumSingle(column) => sums(offsets, items, out, |item| column[item].to_f64()),
            Self::SumDouble(column) => sums(offsets, items, out, |item| column[item]),
            Self::Weight { weights, factors: None } => sums(offsets, items, out, |item| weights[item]),
            Self::Weight { weights, factors: Some(factors) } => {
                sums(offsets, items, out, |item| weights[item] * factors[item].to_f64());
            }
            Self::Positive(credit) => {
                sums(offsets, items, out, |item| credit.products(item).map(above).iter().sum());
            }
            Self::Negative(credit) => {
                sums(offsets, items, out, |item| credit.products(item).map(below).iter().sum());
            }
            Self::First(column) => {
                for (out, &begin) in out.iter_mut().zip(offsets) {
                    *out = column[items[begin as usize] as usize];
                }
            }
        }
    }
}

/// Return the value if it is above 0, else 0; NaN stays NaN.
fn above(value: f64) -> f64 {
    if value < 0.0 { 0.0 } else { value }
}

/// Return the value if it is below 0, else 0; NaN stays NaN.
fn below(value: f64) -> f64 {
    if value > 0.0 { 0.0 } else { value }
}

fn sums(offsets: &[i64], items: &[i64], out: &mut [f32], value: impl Fn(usize) -> f64) {
    for (out, bounds) in out.iter_mut().zip(offsets.windows(2)) {
        let items = &items[bounds[0] as usize..bounds[1] as usize];
        *out = items.iter().fold(0.0, |sum, &item| sum + value(item as usize)) as f32;
    }
}

/// Fill columns of pairs, each from its stream; pair `i` is `items[offsets[i]..offsets[i + 1]]`.
///
/// ```
/// use agentrl_compute::pack::{Credit, Stream, streams};
///
/// // Items 0 and 2 are one pair: a gain of 3 and a loss of 2 at half the weight.
/// let credit = Credit {
///     weights: &[1.0, 1.0, 0.5],
///     factors: None,
///     advantages: &[3.0, 1.0, -2.0],
///     gains: None,
///     losses: None,
/// };
/// let (mut gains, mut losses, mut firsts) = ([0.0; 2], [0.0; 2], [0.0; 2]);
/// let columns = vec![
///     (Stream::Positive(credit), &mut gains[..]),
///     (Stream::Negative(credit), &mut losses[..]),
///     (Stream::First(&[7.0, 8.0, 7.0]), &mut firsts[..]),
/// ];
/// streams(columns, &[0, 2, 3], &[0, 2, 1])?;
/// assert_eq!((gains, losses, firsts), ([3.0, 1.0], [-1.0, 0.0], [7.0, 8.0]));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a pair has no items, an item is outside a column, or a result does not have one value per pair.
pub fn streams(columns: Vec<(Stream<'_>, &mut [f32])>, offsets: &[i64], items: &[i64]) -> Result<()> {
    let pairs = offsets.len().saturating_sub(1);
    if offsets.last().is_none_or(|&last| last != items.len() as i64)
        || columns.iter().any(|(_, out)| out.len() != pairs)
    {
        return Err(Error::invalid("pair_offsets does not fit pair_tokens or the output; take all from one pack"));
    }
    if offsets[0] != 0 || offsets.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(Error::invalid("pair_offsets does not start at 0 and increase; take it from a pack"));
    }
    let most = items.iter().fold(0, |most, &item| most.max(item as u64));
    if let Some(shortest) = columns.iter().map(|(column, _)| column.len()).min().filter(|_| !items.is_empty())
        && most >= shortest as u64
    {
        let beyond = items.iter().find(|&&item| item as u64 >= shortest as u64).copied().unwrap_or_default();
        return Err(Error::invalid(format!(
            "a pair has token {beyond}, but a column has only {shortest} values; give one value for each token"
        )));
    }
    // Chunk by chunk, so that the indices of a chunk's items stay in cache for all columns.
    let mut pieces: Vec<_> = thread_pool::pieces(pairs).into_iter().map(|piece| (piece, Vec::new())).collect();
    for (column, out) in columns {
        for ((_, parts), part) in pieces.iter_mut().zip(out.chunks_mut(thread_pool::PIECE)) {
            parts.push((column, part));
        }
    }
    thread_pool::map(pieces, |(piece, parts)| {
        for (column, out) in parts {
            column.fill(&offsets[piece.start..=piece.end], items, out);
        }
        Ok(())
    })
    .map(drop)
}
