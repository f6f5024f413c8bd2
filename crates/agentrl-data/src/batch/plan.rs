//! The plan from draws to packs: the paths that run together, and the tokens that they predict.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

use agentrl_compute::names;
use agentrl_compute::pack::{Cost, Pairs, Sequences, Shards, Trie, fold, in_order, packs, pieces};
use agentrl_compute::prefix::common_prefix;
use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;

use super::node_tree::PathNode;
use super::{Batch, Level, Numbers, lists};
use crate::{Error, Result};

names! {
    /// Layout of the sequences of a pack.
    #[derive(Default)]
    "layout" PackLayout {
        /// One sequence after the other.
        #[default]
        Sequence = "sequence",
        /// A tree in depth-first order: tokens that sequences share are run once.
        Tree = "tree",
    }
}

/// Options of [`Batch::plan`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanOptions<'a> {
    /// Draws whose paths run.
    pub draws: &'a [i64],
    /// Maximum number of tokens in a pack.
    pub max_tokens: usize,
    /// Layout of the sequences.
    pub layout: PackLayout,
    /// Unit of each draw of the batch. The draws of a unit are in one pack. `None`: a sequence may be in any pack.
    pub unit_of: Option<&'a [i64]>,
    /// Action tokens to predict; `None`: the trainable ones.
    pub trained: Option<&'a [bool]>,
    /// Columns of action tokens. Predictions of the same token are folded into one pair if they agree in all of these
    /// columns. In layout `tree` tokens are the same if they are equal and follow equal tokens, in `sequence` if they
    /// are stored once. `None`: nothing is folded.
    pub fold: Option<&'a [&'a [f32]]>,
    /// Ranks that run packs at the same time.
    pub shards: Option<Shards>,
}

/// One context of a draw, up to its last trained token.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) draw: i64,
    context: usize,
    /// Its action tokens, as a range of the token level.
    pub(super) tokens: Range<usize>,
    /// Number of tokens that are read: all before the last trained one.
    pub(super) rows: usize,
}

/// Packs of a batch. Their arrays are made one pack at a time.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) batch: Batch,
    pub(super) layout: PackLayout,
    pub(super) sequences: Vec<Sequence>,
    images: Vec<u32>,
    /// Sequences of each pack, in their order in the pack.
    pub(super) packs: Vec<Vec<usize>>,
    /// Whether each token makes a pair in its sequence.
    pub(super) makes_pair: Vec<bool>,
    pub(super) folded: Option<Pairs>,
}

impl Batch {
    /// Plan packs of at most `max_tokens` tokens with the paths of some draws. See [`agentrl_compute::pack::packs`].
    ///
    /// A draw whose context was rewritten has one sequence for each context; every trained token is in one of them. A
    /// sequence ends with its last trained token, which is predicted but never read. A context with nothing to train is
    /// in no pack.
    pub fn plan(&self, options: &PlanOptions<'_>) -> Result<Plan> {
        let trained = self.trained(options.trained)?;
        self.chosen("draws", options.draws)?;
        let count = self.level_len(Level::Draw);
        if let Some(found) = options.unit_of.map(<[i64]>::len).filter(|&found| found != count) {
            return Err(Error::invalid(format!("unit_of has {found} values for {count} draws; give one per draw")));
        }
        let sequences = self.sequences(options.draws, &trained);
        let units = units(&sequences, options.unit_of);
        let images = images(self)?;
        let paths = Paths::new(self, &sequences, &images)?;
        let order = (options.layout == PackLayout::Tree).then(|| in_order(&paths, sequences.len()));
        // Attention kernels take sequence bounds of 32 bits.
        let max_tokens = options.max_tokens.min(i32::MAX as usize);
        for piece in pieces(&paths, &units, order.as_deref(), 0, Cost::Tokens) {
            if piece.rows > max_tokens {
                return Err(too_long(&sequences, &piece.sequences, piece.rows, max_tokens));
            }
        }
        let mut packs = packs(&paths, &units, order.as_deref(), max_tokens, options.shards)?;
        let mut rank: Vec<usize> = (0..sequences.len()).collect();
        for (place, &sequence) in order.iter().flatten().enumerate() {
            rank[sequence] = place;
        }
        for pack in &mut packs {
            pack.sort_unstable_by_key(|&sequence| rank[sequence]);
        }
        let folded = options.fold.map(|same| self.folded(&trained, &paths, order.as_deref(), same)).transpose()?;
        let makes_pair = match &folded {
            None => trained,
            Some(folded) => first_of_pairs(folded, &sequences, &packs),
        };
        Ok(Plan { batch: self.clone(), layout: options.layout, sequences, images, packs, makes_pair, folded })
    }

    fn trained(&self, given: Option<&[bool]>) -> Result<Vec<bool>> {
        let Some(given) = given else {
            let Numbers::U8(trainable) = self.column("trainable", Level::Token)? else {
                return Err(Error::invalid(
                    "column \"trainable\" is not of type uint8; give a mask of 0 and 1 as uint8 or bool".to_owned(),
                ));
            };
            return Ok(trainable.iter().map(|&trainable| trainable != 0).collect());
        };
        let actions = &self.layout.actions;
        if given.len() != actions.len() {
            let count = actions.len();
            let found = given.len();
            return Err(Error::invalid(format!("trained has {found} values for {count} action tokens; give one each")));
        }
        let first = actions.of(0..actions.len()).find(|at| given[at.token] && at.position == 0);
        if let Some(token) = first.map(|at| at.token) {
            return Err(Error::invalid(format!(
                "trained[{token}] is true, but no token before it can predict it; make it false"
            )));
        }
        Ok(given.to_vec())
    }

    fn sequences(&self, draws: &[i64], trained: &[bool]) -> Vec<Sequence> {
        let layout = &self.layout;
        let mut sequences = Vec::with_capacity(draws.len());
        for &draw in draws {
            for (context, steps) in layout.contexts(draw as usize) {
                let tokens = layout.tokens_of(steps);
                let Some(last) = tokens.clone().rev().find(|&token| trained[token]) else { continue };
                sequences.push(Sequence { draw, context, tokens, rows: layout.actions.at(last).position as usize });
            }
        }
        sequences
    }

    /// Fold the trained tokens of these sequences into pairs. If there is an order, tokens are identified by their node
    /// in the tree of all tokens that are read, else by where they are stored.
    fn folded(&self, trained: &[bool], paths: &Paths<'_>, order: Option<&[usize]>, same: &[&[f32]]) -> Result<Pairs> {
        let mut run = vec![false; trained.len()];
        for sequence in paths.sequences {
            run[sequence.tokens.clone()].copy_from_slice(&trained[sequence.tokens.clone()]);
        }
        let Some(order) = order else {
            let mut stored = Vec::with_capacity(trained.len());
            stored.extend(self.layout.actions.of(0..trained.len()).map(|at| at.node_token as u32));
            return fold(stored, self.level_len(Level::NodeToken), &run, same);
        };
        let trie = Trie::new(paths, order);
        let mut nodes = vec![0; trained.len()];
        for (place, branch) in trie.branches().iter().enumerate() {
            let path = trie.path(place);
            let mut spans = path.iter().peekable();
            for at in self.layout.actions.of(paths.sequences[branch.sequence].tokens.clone()) {
                let depth = at.position as usize;
                while spans.next_if(|span| span.to <= depth).is_some() {}
                // A sequence is not read after its last trained token.
                let Some(span) = spans.peek() else { break };
                nodes[at.token] = (span.node + depth - span.from) as u32;
            }
        }
        fold(nodes, trie.nodes(), &run, same)
    }
}

/// Group sequences by unit. Units are in the order of their first sequence.
fn units(sequences: &[Sequence], unit_of: Option<&[i64]>) -> Vec<Vec<usize>> {
    let Some(unit_of) = unit_of else { return (0..sequences.len()).map(|sequence| vec![sequence]).collect() };
    let mut known = std::collections::BTreeMap::new();
    let mut units: Vec<Vec<usize>> = Vec::new();
    for (index, sequence) in sequences.iter().enumerate() {
        let unit = *known.entry(unit_of[sequence.draw as usize]).or_insert(units.len());
        if unit == units.len() {
            units.push(Vec::new());
        }
        units[unit].push(index);
    }
    units
}

fn too_long(sequences: &[Sequence], unit: &[usize], rows: usize, max_tokens: usize) -> Error {
    let draw = unit.iter().map(|&sequence| sequences[sequence].draw).min().unwrap_or_default();
    Error::invalid(if unit.len() == 1 {
        format!(
            "max_tokens is {max_tokens}, but draw {draw} has a sequence of {rows} tokens; raise max_tokens or shorten \
             the episodes"
        )
    } else {
        format!(
            "max_tokens is {max_tokens}, but the loss needs draw {draw} in one pack with its whole unit (a \
             trajectory, pair, group or update), which has {rows} tokens; raise max_tokens, or use \
             update.gradient_cached, which splits units"
        )
    })
}

/// Return for each token whether it is the first of its pair, in the first pack that has tokens of the pair.
fn first_of_pairs(pairs: &Pairs, sequences: &[Sequence], packs: &[Vec<usize>]) -> Vec<bool> {
    let mut made = vec![false; pairs.len()];
    let mut first = vec![false; pairs.of.len()];
    for pack in packs {
        let mut pack = pack.clone();
        pack.sort_unstable();
        for token in pack.into_iter().flat_map(|sequence| sequences[sequence].tokens.clone()) {
            let pair = pairs.of[token];
            if pair != Pairs::NONE && !std::mem::replace(&mut made[pair as usize], true) {
                first[token] = true;
            }
        }
    }
    first
}

/// Return a number for the images of each node: 0 without images, and equal numbers for equal images.
fn images(batch: &Batch) -> Result<Vec<u32>> {
    let column = lists(batch.nodes(), "blobs")?;
    let mut known = BTreeMap::new();
    let mut number = |row: usize| {
        let hashes = column.value(row);
        let hashes: Vec<_> = hashes.as_fixed_size_binary().iter().map(|hash| hash.map(<[u8]>::to_vec)).collect();
        let next = known.len() as u32 + 1;
        *known.entry(hashes).or_insert(next)
    };
    let holds = |row| !column.is_null(row) && column.value_length(row) > 0;
    Ok((0..column.len()).map(|row| if holds(row) { number(row) } else { 0 }).collect())
}

/// The sequences as the model reads them: equal tokens after equal tokens are the same, even if they are stored apart.
pub(super) struct Paths<'a> {
    batch: &'a Batch,
    sequences: &'a [Sequence],
    /// All stored tokens.
    pub(super) tokens: &'a [i32],
    /// Numbers of the nodes' images; see [`images`].
    images: &'a [u32],
    /// Path of each sequence, computed on first use.
    found: Vec<OnceLock<Vec<PathNode>>>,
}

impl<'a> Paths<'a> {
    fn new(batch: &'a Batch, sequences: &'a [Sequence], images: &'a [u32]) -> Result<Self> {
        let list = lists(batch.nodes(), "tokens")?;
        let first = list.value_offsets()[0] as usize;
        let tokens = &list.values().as_primitive::<Int32Type>().values()[first..];
        let found = vec![OnceLock::new(); sequences.len()];
        Ok(Self { batch, sequences, tokens, images, found })
    }

    fn path(&self, sequence: usize) -> &[PathNode] {
        self.found[sequence].get_or_init(|| self.batch.layout.path(self.sequences[sequence].context))
    }

    /// Return the nodes of a sequence that have some of its first `tokens` tokens, from its root on.
    pub(super) fn rows_before(&self, sequence: usize, tokens: usize) -> impl Iterator<Item = usize> {
        let mut begin = 0;
        self.path(sequence).iter().filter_map(move |node| {
            let is_before = begin < tokens && node.used > 0;
            begin += node.used;
            is_before.then_some(node.row)
        })
    }

    /// Return the tokens of a node that a path uses.
    fn tokens_of(&self, node: PathNode) -> &'a [i32] {
        let first = self.batch.layout.node_offsets()[node.row] as usize;
        &self.tokens[first..first + node.used]
    }

    /// Return the indices of the stored tokens at a range of depths of a sequence, as runs.
    pub(super) fn runs(&self, sequence: usize, depths: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut begin = 0;
        self.path(sequence).iter().filter_map(move |node| {
            let end = begin + node.used;
            let (from, to) = (depths.start.max(begin), depths.end.min(end));
            let first = self.batch.layout.node_offsets()[node.row] as usize;
            let run = (from < to).then(|| first + from - begin..first + to - begin);
            begin = end;
            run
        })
    }
}

impl Plan {
    pub(super) fn paths(&self) -> Result<Paths<'_>> {
        Paths::new(&self.batch, &self.sequences, &self.images)
    }
}

impl Sequences for Paths<'_> {
    fn length(&self, sequence: usize) -> usize {
        self.sequences[sequence].rows + 1
    }

    fn common(&self, a: usize, b: usize) -> usize {
        let (mut left, mut right) = (self.path(a).iter().copied(), self.path(b).iter().copied());
        let (mut here, mut there) = (left.next(), right.next());
        let most = self.length(a).min(self.length(b));
        // Number of equal tokens so far, and of the tokens of both nodes that were compared.
        let (mut common, mut left_behind, mut right_behind) = (0, 0, 0);
        while let (Some(one), Some(other)) = (here, there) {
            if common >= most || self.images[one.row] != self.images[other.row] {
                break;
            }
            let room = (one.used - left_behind).min(other.used - right_behind);
            // Tokens that are stored once need no comparison.
            let same = if one.row == other.row && left_behind == right_behind {
                room
            } else {
                common_prefix(&self.tokens_of(one)[left_behind..], &self.tokens_of(other)[right_behind..])
            };
            common += same;
            if same < room {
                break;
            }
            (left_behind, right_behind) = (left_behind + room, right_behind + room);
            if left_behind == one.used {
                (here, left_behind) = (left.next(), 0);
            }
            if right_behind == other.used {
                (there, right_behind) = (right.next(), 0);
            }
        }
        common.min(most)
    }

    fn element(&self, sequence: usize, depth: usize) -> i64 {
        let mut begin = 0;
        for &node in self.path(sequence) {
            if depth < begin + node.used {
                let token = i64::from(self.tokens_of(node)[depth - begin]);
                return token + (i64::from(self.images[node.row]) << i32::BITS);
            }
            begin += node.used;
        }
        -1
    }
}
