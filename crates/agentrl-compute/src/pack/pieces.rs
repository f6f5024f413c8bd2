//! Split units and prefix tries into pieces: sequences that stay together in a pack.

use std::collections::BTreeSet;
use std::ops::Range;

use super::Sequences;
use crate::names;

/// Context length in tokens at which the attention of a row costs as much as all its other layers.
///
/// Per layer of width h, a row takes 24 h² operations in linear layers and 4 h c in attention to c tokens; both are
/// equal at c = 6 h. The value is 6 * 4096, for h = 4096.
pub const CONTEXT_OF_EQUAL_COST: u64 = 24_576;

names! {
    /// The cost of a row.
    "balance" Cost {
        /// Every row costs the same.
        Tokens = "tokens",
        /// A row costs `1 + (depth + 1) / CONTEXT_OF_EQUAL_COST`: deeper rows attend to more tokens. Costs are
        /// multiplied by [`CONTEXT_OF_EQUAL_COST`], so that they are whole numbers.
        Work = "work",
    }
}

impl Cost {
    /// Return the cost of the rows of one path in a range of depths.
    pub fn of(self, depths: Range<usize>) -> u64 {
        let (from, to) = (depths.start as u64, depths.end as u64);
        match self {
            Self::Tokens => to - from,
            Self::Work => (to - from) * CONTEXT_OF_EQUAL_COST + (to * (to + 1) - from * (from + 1)) / 2,
        }
    }
}

/// Sequences that stay together in one pack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Indices of the sequences: in lexicographic order if they share rows, else in the order of their unit.
    pub sequences: Vec<usize>,
    /// Number of rows of all sequences; shared rows count once.
    pub rows: usize,
    /// Cost of these rows.
    pub cost: u64,
}

/// Group units into pieces. A unit is a set of sequences that must lie in one pack.
///
/// Without `order`, each unit is a piece, and sequences share nothing. With `order`, the lexicographic order of the
/// sequences, units of one tree are added to a piece in that order while it has at most `limit` rows. Rows that a piece
/// shares with the previous piece are repeated. A unit is never split, so a piece of one unit may have more rows.
///
/// ```
/// use agentrl_compute::pack::{Cost, TokenRows, in_order, pieces};
/// use agentrl_compute::ragged::Ragged;
///
/// let tokens = TokenRows::new(Ragged::new(&[5, 6, 7, 5, 6, 8, 9, 5, 4, 3], &[0, 3, 7, 10])?, None)?;
/// let (order, units) = (in_order(&tokens, 3), [vec![0], vec![1], vec![2]]);
/// let made = pieces(&tokens, &units, Some(&order), 3, Cost::Tokens);
/// assert_eq!(made[0].sequences, [2, 0]);
/// assert_eq!((made[0].rows, made[1].rows), (3, 3));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
pub fn pieces<S: Sequences>(
    sequences: &S,
    units: &[Vec<usize>],
    order: Option<&[usize]>,
    limit: usize,
    cost: Cost,
) -> Vec<Piece> {
    let Some(order) = order else { return units.iter().map(|unit| alone(sequences, unit, cost)).collect() };
    let mut rank = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &sequence)| rank[sequence] = place);
    let mut ranked: Vec<Vec<usize>> =
        units.iter().map(|unit| unit.iter().map(|&sequence| rank[sequence]).collect()).collect();
    for unit in &mut ranked {
        unit.sort_unstable();
    }
    ranked.sort_unstable();
    let mut growing = Growing { sequences, order, ranks: BTreeSet::new(), rows: 0, cost: 0 };
    let mut made = Vec::new();
    for unit in ranked.iter().filter(|unit| !unit.is_empty()) {
        let first = order[unit[0]];
        let other_tree = growing.ranks.first().is_some_and(|&known| sequences.common(order[known], first) == 0);
        if other_tree {
            made.push(growing.take());
        }
        let mut with = growing.add(unit, cost);
        if with.0 > limit && growing.ranks.len() > unit.len() {
            growing.ranks.retain(|place| unit.binary_search(place).is_err());
            made.push(growing.take());
            with = growing.add(unit, cost);
        }
        (growing.rows, growing.cost) = with;
    }
    if !growing.ranks.is_empty() {
        made.push(growing.take());
    }
    made
}

fn alone<S: Sequences>(sequences: &S, unit: &[usize], cost: Cost) -> Piece {
    let rows = unit.iter().map(|&sequence| sequences.rows(sequence));
    Piece { sequences: unit.to_vec(), rows: rows.clone().sum(), cost: rows.map(|rows| cost.of(0..rows)).sum() }
}

/// A piece while units are added; `ranks` are positions in the lexicographic order.
struct Growing<'a, S> {
    sequences: &'a S,
    order: &'a [usize],
    ranks: BTreeSet<usize>,
    rows: usize,
    cost: u64,
}

impl<S: Sequences> Growing<'_, S> {
    /// Add a unit to `ranks` and return the new rows and cost, which the caller must store.
    fn add(&mut self, unit: &[usize], cost: Cost) -> (usize, u64) {
        let (mut rows, mut paid) = (self.rows, self.cost);
        for &place in unit {
            let own = self.order[place];
            let shared =
                |other: Option<&usize>| other.map_or(0, |&other| self.sequences.shared_rows(self.order[other], own));
            let before = shared(self.ranks.range(..place).next_back());
            let known = before.max(shared(self.ranks.range(place + 1..).next()));
            rows += self.sequences.rows(own) - known;
            paid += cost.of(known..self.sequences.rows(own));
            self.ranks.insert(place);
        }
        (rows, paid)
    }

    fn take(&mut self) -> Piece {
        let sequences = std::mem::take(&mut self.ranks).into_iter().map(|place| self.order[place]).collect();
        Piece { sequences, rows: std::mem::take(&mut self.rows), cost: std::mem::take(&mut self.cost) }
    }
}
