//! Throughput of building prefix trees of rollouts and folding their tokens: `cargo bench -p agentrl-compute`. One
//! sample is a batch of trees whose rollouts branch at every segment.

use agentrl_compute::Result;
use agentrl_compute::pack::{Pairs, TokenRows, Trie, fold, in_order};
use agentrl_compute::ragged::Ragged;
use divan::Bencher;
use divan::counter::ItemsCount;

const TREES: usize = 64;
/// Segments from root to leaf, with two branches after each, and tokens per segment.
const SEGMENTS: usize = 5;
const TOKENS: usize = 128;
const LEAVES: usize = 1 << (SEGMENTS - 1);
const ROWS: usize = TREES * LEAVES;
const PATH: usize = SEGMENTS * TOKENS;

fn main() {
    divan::main();
}

/// Return the segment of a path at a depth, numbered over all trees; leaves with the same first bits share it.
fn segment(row: usize, depth: usize) -> usize {
    let (tree, leaf) = (row / LEAVES, row % LEAVES);
    tree * 2 * LEAVES + (1 << depth) + (leaf >> (SEGMENTS - 1 - depth))
}

/// Return the stored token at each position of all paths.
fn identities() -> Vec<u32> {
    let path = |row: usize| (0..PATH).map(move |place| segment(row, place / TOKENS) * TOKENS + place % TOKENS);
    (0..ROWS).flat_map(path).map(|token| token as u32).collect()
}

/// Return the paths as rows of tokens; `scattered` interleaves the trees, so that neighbours share nothing.
fn paths(scattered: bool) -> (Vec<i32>, Vec<i64>) {
    let row = |place: usize| if scattered { place % TREES * LEAVES + place / TREES } else { place };
    let identities = identities();
    let tokens = (0..ROWS).flat_map(|place| &identities[row(place) * PATH..][..PATH]).map(|&token| token as i32);
    (tokens.collect(), (0..=ROWS).map(|row| (row * PATH) as i64).collect())
}

fn path_tokens() -> ItemsCount {
    ItemsCount::new(ROWS * PATH)
}

fn tree(tokens: &[i32], offsets: &[i64]) -> Result<Trie> {
    let rows = TokenRows::new(Ragged::new(tokens, offsets)?, None)?;
    Ok(Trie::new(&rows, &in_order(&rows, ROWS)))
}

/// Build the prefix trie of token rows.
#[divan::bench(args = [false, true])]
fn trie(bencher: Bencher<'_, '_>, scattered: bool) {
    let (tokens, offsets) = paths(scattered);
    // Nothing reads the last token of a leaf.
    let rows = TREES * ((2 * LEAVES - 1) * TOKENS - LEAVES);
    assert_eq!(tree(&tokens, &offsets).map_or(0, |tree| tree.rows()), rows, "what is shared lies once");
    bencher.counter(path_tokens()).bench(|| tree(&tokens, &offsets));
}

/// Compute the end of each row's subtree in an existing trie.
#[divan::bench]
fn subtree_ends(bencher: Bencher<'_, '_>) {
    let (tokens, offsets) = paths(false);
    let grown = || tree(&tokens, &offsets).map(|tree| (vec![0; tree.rows()], tree));
    bencher.counter(path_tokens()).with_inputs(grown).bench_local_values(|input| -> Result<Vec<i32>> {
        let (mut ends, tree) = input?;
        tree.subtree_ends(&mut ends);
        Ok(ends)
    });
}

/// Fold tokens that agree in `columns` columns.
#[divan::bench(args = [0, 1, 4])]
fn joined(bencher: Bencher<'_, '_>, columns: usize) {
    let identities = identities();
    let count = TREES * 2 * LEAVES * TOKENS;
    let trained = vec![true; identities.len()];
    let same: Vec<Vec<f32>> =
        (0..columns).map(|column| identities.iter().map(|&token| (token as usize + column) as f32).collect()).collect();
    let same: Vec<&[f32]> = same.iter().map(Vec::as_slice).collect();
    bencher
        .counter(path_tokens())
        .with_inputs(|| identities.clone())
        .bench_values(|identities| -> Result<Pairs> { fold(identities, count, &trained, &same) });
}
