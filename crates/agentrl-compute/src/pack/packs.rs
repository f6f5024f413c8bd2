//! Assign units to packs, for one trainer or for several ranks.

use std::cmp::Reverse;

use super::{Cost, Piece, Sequences, balanced, first_fit_decreasing, pieces, room_for_bins};
use crate::{Error, Result};

/// Ranks that run packs at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    /// Number of ranks.
    pub ranks: usize,
    /// The cost that is balanced over ranks.
    pub balance: Cost,
}

/// Assign units to packs of at most `capacity` rows, and return the sequences of each pack. A unit is a set of
/// sequences that must lie in one pack.
///
/// `order` is as for [`pieces`]: with it, sequences share rows. Without `shards`, pieces are packed first-fit
/// decreasing. With `shards`, a rank runs pack `round * ranks + rank` in each round. The packs of a round cost about
/// the same. If fewer units than ranks are left, some packs of the round are empty. Trees are split into smaller pieces
/// than the capacity requires if that makes the rounds shorter.
///
/// # Errors
/// `InvalidInput` if a unit has more rows than the capacity, or there is no rank.
pub fn packs<S: Sequences>(
    sequences: &S,
    units: &[Vec<usize>],
    order: Option<&[usize]>,
    capacity: usize,
    shards: Option<Shards>,
) -> Result<Vec<Vec<usize>>> {
    let cost = shards.map_or(Cost::Tokens, |shards| shards.balance);
    let whole = pieces(sequences, units, order, capacity, cost);
    let rows: Vec<usize> = whole.iter().map(|piece| piece.rows).collect();
    let bins = first_fit_decreasing(&rows, capacity)?;
    let Some(Shards { ranks, .. }) = shards else { return Ok(join(&whole, &bins)) };
    if ranks == 0 {
        return Err(Error::invalid("shards is 0; give the number of ranks, from 1"));
    }
    room_for_bins("shards", ranks)?;
    let rounds = bins.len().div_ceil(ranks);
    let dealt = |pieces: &[Piece]| {
        let filled = join(pieces, &level(pieces, ranks, rounds, capacity));
        in_rounds(sequences, filled, order, ranks, cost)
    };
    let mut best = dealt(&whole);
    let average = rows.iter().sum::<usize>().div_ceil((rounds * ranks).max(1));
    // Only trees can be split further.
    for share in (1..=4).take_while(|_| order.is_some()) {
        let other = dealt(&pieces(sequences, units, order, average.div_ceil(share).min(capacity), cost));
        if other.1 < best.1 {
            best = other;
        }
    }
    Ok(best.0)
}

fn join(pieces: &[Piece], bins: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let sequences = |bin: &Vec<usize>| bin.iter().flat_map(|&piece| pieces[piece].sequences.iter().copied()).collect();
    bins.iter().map(sequences).collect()
}

/// Fill bins of about equal cost; add rounds until all pieces fit.
fn level(pieces: &[Piece], ranks: usize, mut rounds: usize, capacity: usize) -> Vec<Vec<usize>> {
    let costs: Vec<u64> = pieces.iter().map(|piece| piece.cost).collect();
    let rows: Vec<usize> = pieces.iter().map(|piece| piece.rows).collect();
    loop {
        // Ends at the latest with one bin per piece.
        if let Some(bins) = balanced(&costs, &rows, ranks * rounds, capacity) {
            return bins;
        }
        rounds += 1;
    }
}

/// Sort bins by cost and deal them into rounds; also return the sum of the highest costs of the rounds.
fn in_rounds<S: Sequences>(
    sequences: &S,
    bins: Vec<Vec<usize>>,
    order: Option<&[usize]>,
    ranks: usize,
    cost: Cost,
) -> (Vec<Vec<usize>>, u64) {
    // Pieces of one tree in the same bin share rows again.
    let paid =
        |bin: &Vec<usize>| pieces(sequences, std::slice::from_ref(bin), order, 0, cost).iter().map(|p| p.cost).sum();
    let mut known: Vec<(u64, Vec<usize>)> = bins.into_iter().map(|bin| (paid(&bin), bin)).collect();
    known.sort_by_key(|&(cost, _)| Reverse(cost));
    let slowest = known.chunks(ranks).map(|round| round[0].0).sum();
    // Alternate the direction, so that no rank gets the most expensive pack of every round.
    for round in known.chunks_mut(ranks).skip(1).step_by(2) {
        round.reverse();
    }
    (known.into_iter().map(|(_, bin)| bin).collect(), slowest)
}
