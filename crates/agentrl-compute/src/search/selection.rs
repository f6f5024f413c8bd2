//! Choose the turns after which a search tree grows.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

use super::graph::{NONE, Search, Status};
use crate::argument_checks::within;
use crate::keys::FixedHasher;
use crate::{Error, Result};

type PerTurn<T> = HashMap<u32, T, BuildHasherDefault<FixedHasher>>;

/// Options of [`Search::descend`], the walk down a tree to the turn after which it grows next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Descent {
    /// Number of children that are tried after a turn before the walk follows one of them.
    pub width: u32,
    /// Maximum number of turns on a path.
    pub depth: u32,
    /// Weight of `sqrt(ln N / n)`, which is added to the mean value.
    pub exploration: f64,
}

impl Search {
    /// Best-first search: return at most `count` open states in which no turn was tried, each as the turn that first
    /// reached it. The states with the likeliest paths (log-prob of all turns up to the state) come first.
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

    /// Upper confidence bounds (UCT): return at most `count` turns after which the tree grows next; [`NONE`] is the
    /// root, before the first turn.
    ///
    /// Each turn is found by a walk from the root. The walk ends at a turn with fewer than `width` children. Otherwise
    /// it continues with the child that has the largest `Q + exploration · sqrt(ln N / n)`; ties go to the first child.
    /// `Q` is the mean value of the ended paths through the child, `n` is their number, and `N` is the number for its
    /// parent. A child without a value comes first. Turns that end an episode, and turns whose path has `depth` turns,
    /// are never followed. Each walk of a call counts as a visit with value 0 in the later walks (a virtual loss), and
    /// no two walks end at the same turn. The choice therefore depends only on the tree, not on the order in which
    /// rollouts return.
    ///
    /// # Errors
    /// `InvalidInput` if `width` or `depth` is 0, or `exploration` is negative or not finite.
    pub fn descend(&self, count: usize, descent: &Descent) -> Result<Vec<u32>> {
        let &Descent { width, depth, exploration } = descent;
        within("exploration", exploration, 0.0, f64::MAX)?;
        if width == 0 || depth == 0 {
            return Err(Error::invalid(format!("width is {width} and depth {depth}; give at least 1 for each")));
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

    /// Select under-sampled turns: return `count` turns after which the tree grows next. The walks follow turns that
    /// were sampled less often than their policy would sample them.
    ///
    /// Each turn is found by a walk from the root. The walk ends if there are no children. Otherwise it continues with
    /// the child `a` whose share of the visits is furthest below its share of the probability; ties go to the first
    /// child:
    ///
    /// ```text
    /// n(a) / Σ n  -  p(a) / Σ p      (n: ended paths through it; p: exp of the log-prob of its tokens)
    /// ```
    ///
    /// If the walk reaches a turn that ends its episode, it returns the turn before it. Each walk of a call counts as a
    /// visit in the later walks.
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

    /// Return the visits of a turn or of the root, including virtual visits.
    fn seen(&self, row: u32, pending: &PerTurn<u32>) -> u32 {
        let visits = self.turns.get(row as usize).map_or(self.visits, |turn| turn.visits);
        visits + pending.get(&row).copied().unwrap_or(0)
    }
}
