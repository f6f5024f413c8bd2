//! Where a search goes on.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

use super::graph::{NONE, Search, Status};
use crate::argument_checks::within;
use crate::keys::FixedHasher;
use crate::{Error, Result};

type PerTurn<T> = HashMap<u32, T, BuildHasherDefault<FixedHasher>>;

/// Options of the walk down a tree to the turn after which it grows next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Descent {
    /// The number of turns that are tried after a turn before one of them is followed.
    pub width: u32,
    /// Most turns of a path.
    pub depth: u32,
    /// Weight of `sqrt(ln N / n)` beside the mean value.
    pub exploration: f64,
}

impl Search {
    /// Best first: at most `count` states that may still be solved and in which nothing was tried, each named by the turn
    /// that reached it first; those with the likeliest paths (the log-prob of all turns up to there) come first.
    pub fn frontier(&mut self, count: usize) -> Vec<u32> {
        let mut found = Vec::new();
        while found.len() < count
            && let Some(candidate) = self.open.pop()
        {
            if self.states[candidate.state as usize].tried.is_empty() && self.status(candidate.state) == Status::Open {
                found.push(candidate);
            }
        }
        self.open.extend(found.iter().copied());
        found.into_iter().map(|candidate| self.first(candidate.state)).collect()
    }

    /// Upper confidence bounds: at most `count` turns after which the tree grows next, [`NONE`] for the beginning.
    ///
    /// Each is found by a walk from the beginning. Where fewer than `width` turns follow, it ends; else it goes on with the
    /// turn that has the largest `Q + exploration · sqrt(ln N / n)`, the first one of equals: `Q` is the mean value of the
    /// ended paths through the turn, `n` their number, `N` that of the turn before it. One without a value comes first.
    /// Turns that end an episode, and those with `depth` turns up to them, are never followed. Walks of one call
    /// see each other as a visit of value 0 (a virtual loss), and none ends where another one did. So what is chosen depends
    /// on the tree alone, and not on who comes back first.
    ///
    /// # Errors
    /// `InvalidInput` if `width` or `depth` is 0, or `exploration` is negative or not finite.
    pub fn descend(&self, count: usize, descent: &Descent) -> Result<Vec<u32>> {
        let &Descent { width, depth, exploration } = descent;
        within("exploration", exploration, 0.0, f64::MAX)?;
        if width == 0 || depth == 0 {
            return Err(Error::invalid(format!("width is {width} and depth {depth}; both must be at least 1")));
        }
        // Turns that lead nowhere any more in this call, and virtual visits.
        let mut closed: HashSet<u32, BuildHasherDefault<FixedHasher>> = HashSet::default();
        let mut pending: PerTurn<u32> = PerTurn::default();
        let mut found = Vec::new();
        while found.len() < count && !closed.contains(&NONE) {
            let (mut row, mut way) = (NONE, vec![NONE]);
            let grows = loop {
                let after = self.children(row);
                if (after.len() as u32) < width {
                    break true;
                }
                let above = f64::from(self.seen(row, &pending)).ln();
                let score = |turn: u32| {
                    let visits = f64::from(self.seen(turn, &pending));
                    let bonus = exploration * (above / visits).max(0.0).sqrt();
                    if visits > 0.0 { self.turns[turn as usize].total / visits + bonus } else { f64::INFINITY }
                };
                let open = |turn: &u32| {
                    let known = &self.turns[*turn as usize];
                    !closed.contains(turn) && known.depth + 1 < depth && !self.ended(known.after)
                };
                let open = after.iter().copied().filter(open);
                let best =
                    open.map(|turn| (score(turn), turn)).reduce(|best, next| if next.0 > best.0 { next } else { best });
                let Some((_, best)) = best else { break false };
                way.push(best);
                row = best;
            };
            closed.insert(row);
            if grows {
                found.push(row);
                for row in way {
                    *pending.entry(row).or_default() += 1;
                }
            }
        }
        Ok(found)
    }

    /// Turns that were sampled less than their policy would: at most `count` turns after which the tree grows next, one
    /// after the other.
    ///
    /// Each is found by a walk from the beginning. Where no turn follows, it ends; else it goes on with the turn `a` whose
    /// share of the visits is furthest below its share of the probability, the first one of equals:
    ///
    /// ```text
    /// n(a) / Σ n  -  p(a) / Σ p      (n: ended paths through it; p: exp of the log-prob of its tokens)
    /// ```
    ///
    /// A turn that ends its episode is not grown behind but in front of: the walk ends at the turn before it. Walks of one
    /// call count as visits of each other.
    pub fn under_sampled(&self, count: usize) -> Vec<u32> {
        let mut pending: PerTurn<u32> = PerTurn::default();
        let walk = |_| {
            let (mut row, mut way) = (NONE, Vec::new());
            loop {
                let after = self.children(row);
                let visits: f64 = after.iter().map(|&turn| f64::from(self.seen(turn, &pending))).sum();
                let most =
                    after.iter().map(|&turn| self.turns[turn as usize].logprob).fold(f64::NEG_INFINITY, f64::max);
                let mass: f64 = after.iter().map(|&turn| (self.turns[turn as usize].logprob - most).exp()).sum();
                let lag = |turn: u32| {
                    let seen = f64::from(self.seen(turn, &pending)) / visits.max(1.0);
                    seen - (self.turns[turn as usize].logprob - most).exp() / mass
                };
                let next = after.iter().map(|&turn| (lag(turn), turn));
                let Some((_, next)) = next.reduce(|least, next| if next.0 < least.0 { next } else { least }) else {
                    break;
                };
                way.push(next);
                if self.ended(self.turns[next as usize].after) {
                    break;
                }
                row = next;
            }
            for turn in way {
                *pending.entry(turn).or_default() += 1;
            }
            row
        };
        (0..count).map(walk).collect()
    }

    /// Visits of a turn, or of the beginning, the virtual ones included.
    fn seen(&self, row: u32, pending: &PerTurn<u32>) -> u32 {
        let visits = self.turns.get(row as usize).map_or(self.visits, |turn| turn.visits);
        visits + pending.get(&row).copied().unwrap_or(0)
    }
}
