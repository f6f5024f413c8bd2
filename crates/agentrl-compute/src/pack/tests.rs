//! Tries, pieces, packs and folds compared with their definitions, prefix by prefix.
#![expect(clippy::float_cmp, reason = "exact by construction")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::ragged::Ragged;
use crate::{Error, Result};

fn offsets(rows: &[Vec<i32>]) -> Vec<i64> {
    let mut offsets = vec![0];
    for row in rows {
        offsets.push(offsets[offsets.len() - 1] + row.len() as i64);
    }
    offsets
}

/// Return the prefixes that are read in some rows: all that another token follows.
fn read<'a>(rows: impl Iterator<Item = &'a Vec<i32>>) -> BTreeSet<Vec<i32>> {
    rows.flat_map(|row| (1..row.len()).map(|end| row[..end].to_vec())).collect()
}

fn some_rows() -> impl Strategy<Value = Vec<Vec<i32>>> {
    prop::collection::vec(prop::collection::vec(0..3, 0..7), 0..9)
}

fn some_units(rows: usize) -> impl Strategy<Value = Vec<Vec<usize>>> {
    prop::collection::vec(0..rows.max(1), rows)
        .prop_map(move |of| (0..rows).map(|unit| (0..rows).filter(|&row| of[row] == unit).collect()).collect())
}

fn rows_and_units() -> impl Strategy<Value = (Vec<Vec<i32>>, Vec<Vec<usize>>)> {
    some_rows().prop_flat_map(|rows| {
        let count = rows.len();
        (Just(rows), some_units(count))
    })
}

proptest! {
    #[test]
    fn a_row_for_each_beginning_that_is_read_and_a_mask_of_ancestors(rows in some_rows()) {
        let (flat, offsets) = (rows.concat(), offsets(&rows));
        let tokens = TokenRows::new(Ragged::new(&flat, &offsets)?, None)?;
        let order = in_order(&tokens, rows.len());
        let mut sorted: Vec<usize> = (0..rows.len()).collect();
        sorted.sort_by_key(|&row| &rows[row]);
        prop_assert_eq!(&order, &sorted);
        let trie = Trie::new(&tokens, &order);
        let expected: Vec<Vec<i32>> = read(rows.iter()).into_iter().collect();
        prop_assert_eq!(trie.rows(), expected.len());
        let (mut depths, mut ends) = (vec![0; trie.rows()], vec![0; trie.rows()]);
        trie.depths(&mut depths);
        trie.subtree_ends(&mut ends);
        // The depth-first order of a sorted trie is the lexicographic order of its prefixes.
        for (row, own) in expected.iter().enumerate() {
            prop_assert_eq!(depths[row] as usize, own.len() - 1);
            for (other, beginning) in expected.iter().enumerate() {
                let seen = other <= row && row < ends[other] as usize;
                prop_assert_eq!(seen, own.starts_with(beginning), "{:?} sees {:?}", own, beginning);
            }
        }
        let starts: Vec<usize> = (0..expected.len()).filter(|&row| depths[row] == 0).chain([expected.len()]).collect();
        prop_assert_eq!(trie.starts(), starts);
        for (place, &sequence) in order.iter().enumerate() {
            let path: Vec<(usize, usize)> = trie
                .path(place)
                .iter()
                .flat_map(|span| (span.from..span.to).map(|depth| (depth, span.row + depth - span.from)))
                .collect();
            prop_assert_eq!(path.len(), rows[sequence].len());
            for (index, &(depth, row)) in path.iter().enumerate() {
                prop_assert_eq!(depth, index);
                if depth + 1 < rows[sequence].len() {
                    prop_assert_eq!(&expected[row], &rows[sequence][..=depth]);
                }
            }
        }
    }

    #[test]
    fn pieces_hold_whole_units_and_count_shared_rows_once(
        (rows, units) in rows_and_units(),
        limit in 0_usize..20,
        tree in any::<bool>(),
    ) {
        let (flat, offsets) = (rows.concat(), offsets(&rows));
        let tokens = TokenRows::new(Ragged::new(&flat, &offsets)?, None)?;
        let order = in_order(&tokens, rows.len());
        for cost in [Cost::Tokens, Cost::Work] {
            let found = pieces(&tokens, &units, tree.then_some(&order[..]), limit, cost);
            let mut all: Vec<usize> = found.iter().flat_map(|piece| piece.sequences.clone()).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..rows.len()).collect::<Vec<_>>());
            for piece in &found {
                let held: Vec<&Vec<usize>> =
                    units.iter().filter(|unit| unit.iter().any(|row| piece.sequences.contains(row))).collect();
                prop_assert!(held.iter().all(|unit| unit.iter().all(|row| piece.sequences.contains(row))));
                let beginnings = piece.sequences.iter().map(|&row| read(std::iter::once(&rows[row])));
                let runs: Vec<Vec<i32>> = if tree {
                    beginnings.flatten().collect::<BTreeSet<_>>().into_iter().collect()
                } else {
                    beginnings.flatten().collect()
                };
                prop_assert_eq!(piece.rows, runs.len());
                let paid: u64 = runs
                    .iter()
                    .map(|run| if cost == Cost::Tokens { 1 } else { CONTEXT_OF_EQUAL_COST + run.len() as u64 })
                    .sum();
                prop_assert_eq!(piece.cost, paid);
                prop_assert!(!tree || piece.rows <= limit || held.len() == 1);
            }
        }
    }

    #[test]
    fn packs_keep_units_and_capacity_and_give_each_rank_as_many(
        (rows, units) in rows_and_units(),
        room in 0_usize..20,
        ranks in 0_usize..5,
        tree in any::<bool>(),
        work in any::<bool>(),
    ) {
        let (flat, offsets) = (rows.concat(), offsets(&rows));
        let tokens = TokenRows::new(Ragged::new(&flat, &offsets)?, None)?;
        let order = in_order(&tokens, rows.len());
        let order = tree.then_some(&order[..]);
        let least = pieces(&tokens, &units, order, 0, Cost::Tokens).iter().map(|piece| piece.rows).max().unwrap_or(0);
        let shards = Shards { ranks, balance: if work { Cost::Work } else { Cost::Tokens } };
        let found = packs(&tokens, &units, order, least + room, (ranks > 0).then_some(shards))?;
        prop_assert_eq!(found.len() % ranks.max(1), 0);
        let mut all = found.concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..rows.len()).collect::<Vec<_>>());
        for pack in &found {
            let size: usize =
                pieces(&tokens, std::slice::from_ref(pack), order, 0, Cost::Tokens).iter().map(|piece| piece.rows).sum();
            prop_assert!(size <= least + room);
        }
        for unit in &units {
            let holding = found.iter().filter(|pack| unit.iter().any(|row| pack.contains(row))).count();
            prop_assert!(holding <= 1);
        }
    }

    #[test]
    fn folds_join_what_agrees(
        items in prop::collection::vec((0_u32..4, any::<bool>(), 0..3, 0..2), 0..30),
    ) {
        let identities: Vec<u32> = items.iter().map(|item| item.0).collect();
        let trained: Vec<bool> = items.iter().map(|item| item.1).collect();
        let old: Vec<f32> = items.iter().map(|item| if item.2 == 2 { f32::NAN } else { item.2 as f32 }).collect();
        let other: Vec<f32> = items.iter().map(|item| item.3 as f32).collect();
        let pairs = fold(identities, 4, &trained, &[&old, &other])?;
        let mut known: BTreeMap<(u32, i32, i32), Vec<i64>> = BTreeMap::new();
        for (index, item) in items.iter().enumerate().filter(|(_, item)| item.1) {
            known.entry((item.0, item.2, item.3)).or_default().push(index as i64);
        }
        let mut expected: Vec<Vec<i64>> = known.into_values().collect();
        expected.sort();
        let found: Vec<Vec<i64>> = (0..pairs.len()).map(|pair| pairs.items(pair).to_vec()).collect();
        prop_assert_eq!(found, expected);
        for (item, &pair) in pairs.of.iter().enumerate() {
            prop_assert_eq!(pair != Pairs::NONE, trained[item]);
            prop_assert!(pair == Pairs::NONE || pairs.items(pair as usize).contains(&(item as i64)));
        }
        let values: Vec<f64> = (0..items.len()).map(|item| 0.1 * item as f64).collect();
        let single: Vec<f32> = values.iter().map(|&value| value as f32).collect();
        let mut out = vec![vec![0.0; pairs.len()]; 3];
        let columns = [Stream::SumDouble(&values), Stream::SumSingle(&single), Stream::First(&single)];
        let filled = columns.into_iter().zip(out.iter_mut().map(|column| &mut column[..])).collect();
        streams(filled, &pairs.offsets, &pairs.items)?;
        for pair in 0..pairs.len() {
            let items = pairs.items(pair).iter().map(|&item| item as usize);
            let double = items.clone().fold(0.0, |sum, item| sum + values[item]);
            let sum = items.clone().fold(0.0, |sum, item| sum + f64::from(single[item]));
            let expected = [double as f32, sum as f32, single[pairs.items(pair)[0] as usize]];
            prop_assert_eq!([out[0][pair], out[1][pair], out[2][pair]].map(f32::to_bits), expected.map(f32::to_bits));
        }
    }

    #[test]
    fn continuations_are_packed_as_the_rows_they_stand_for(
        text in prop::collection::vec(0..3, 0..20),
        tails in prop::collection::vec(prop::collection::vec(0..3, 1..4), 1..4),
        rows in prop::collection::vec((0_usize..20, 0_usize..20, 0_usize..4), 0..9),
        room in 0_usize..12,
    ) {
        let rows: Vec<(usize, usize, usize)> = rows
            .into_iter()
            .map(|(a, b, tail)| (a.min(b).min(text.len()), a.max(b).min(text.len()), tail % tails.len()))
            .collect();
        let whole: Vec<Vec<i32>> =
            rows.iter().map(|&(begin, end, tail)| [&text[begin..end], &tails[tail]].concat()).collect();
        let column = |of: fn(&(usize, usize, usize)) -> usize| rows.iter().map(|row| of(row) as i64).collect::<Vec<_>>();
        let (flat_tails, tail_offsets) = (tails.concat(), offsets(&tails));
        let continuations = Continuations::new(
            &text,
            &column(|row| row.0),
            &column(|row| row.1),
            Ragged::new(&flat_tails, &tail_offsets)?,
            &column(|row| row.2),
        )?;
        let (flat, row_offsets) = (whole.concat(), offsets(&whole));
        let tokens = TokenRows::new(Ragged::new(&flat, &row_offsets)?, None)?;
        for a in 0..whole.len() {
            prop_assert_eq!(continuations.length(a), tokens.length(a));
            for b in 0..whole.len() {
                prop_assert_eq!(continuations.common(a, b), tokens.common(a, b));
            }
            for depth in 0..whole[a].len() {
                prop_assert_eq!(continuations.element(a, depth), tokens.element(a, depth));
            }
        }
        let longest = whole.iter().map(|row| row.len() - 1).max().unwrap_or(0);
        let found = continuations.packs(longest + room)?;
        let mut rows: Vec<usize> = found.concat();
        rows.sort_unstable();
        prop_assert_eq!(rows, (0..whole.len()).collect::<Vec<_>>());
        for pack in &found {
            prop_assert!(read(pack.iter().map(|&row| &whole[row])).len() <= longest + room);
        }
    }

    #[test]
    fn products_are_summed_over_the_items_of_a_pair(
        rows in prop::collection::vec(
            (1_usize..5, prop::collection::vec((0.0..2.0_f64, -3.0..3.0_f32, -2.0..2.0_f32, -2.0..2.0_f32), 5)),
            0..40,
        ),
        (with_factors, with_gains, with_losses) in any::<(bool, bool, bool)>(),
    ) {
        let items: Vec<_> = rows.iter().flat_map(|(count, items)| &items[..*count]).copied().collect();
        let mut offsets = vec![0_i64];
        for (count, _) in &rows {
            offsets.push(offsets[offsets.len() - 1] + *count as i64);
        }
        let count = items.len() as i64;
        // Reverse the items: gathered values may lie anywhere.
        let gathered: Vec<i64> = (0..count).rev().collect();
        let weights: Vec<f64> = items.iter().map(|item| item.0).collect();
        let columns: [Vec<f32>; 3] = [
            items.iter().map(|item| item.1).collect(),
            items.iter().map(|item| item.2).collect(),
            items.iter().map(|item| item.3).collect(),
        ];
        let [advantages, factors, apart] = &columns;
        let credit = Credit {
            weights: &weights,
            factors: with_factors.then_some(factors),
            advantages,
            gains: with_gains.then_some(apart),
            losses: with_losses.then_some(factors),
        };
        let mut out = vec![vec![0.0_f32; rows.len()]; 3];
        let made = [
            Stream::Positive(credit),
            Stream::Negative(credit),
            Stream::Weight { weights: &weights, factors: with_factors.then_some(factors) },
        ];
        streams(made.into_iter().zip(out.iter_mut().map(|column| &mut column[..])).collect(), &offsets, &gathered)?;
        for pair in 0..rows.len() {
            let (mut positive, mut negative, mut total) = (0.0, 0.0, 0.0);
            for place in offsets[pair]..offsets[pair + 1] {
                let item = gathered[place as usize] as usize;
                let factor = weights[item] * if with_factors { f64::from(factors[item]) } else { 1.0 };
                let gain = if with_gains { apart[item] } else { advantages[item].max(0.0) };
                let loss = if with_losses { factors[item] } else { advantages[item].min(0.0) };
                let products = [f64::from(gain) * factor, f64::from(loss) * factor];
                positive += products[0].max(0.0) + products[1].max(0.0);
                negative += products[0].min(0.0) + products[1].min(0.0);
                total += factor;
            }
            let expected = [positive as f32, negative as f32, total as f32];
            prop_assert_eq!([out[0][pair], out[1][pair], out[2][pair]], expected);
        }
    }

    #[test]
    fn rows_of_tokens_become_trees(
        rows in some_rows(),
        mask in prop::collection::vec(any::<bool>(), 60),
        old in prop::collection::vec(0..2, 60),
    ) {
        let (flat, offsets) = (rows.concat(), offsets(&rows));
        let firsts: BTreeSet<i64> = offsets.iter().copied().collect();
        let trained: Vec<bool> = (0..flat.len()).map(|place| mask[place] && !firsts.contains(&(place as i64))).collect();
        let old: Vec<f32> = old[..flat.len()].iter().map(|&old| old as f32).collect();
        let tree = RowTree::new(Ragged::new(&flat, &offsets)?, Some(&trained), &[&old])?;
        let (count, pairs) = (tree.trie().rows(), tree.pairs());
        let (mut ids, mut positions, mut ends) = (vec![0; count], vec![0; count], vec![0; count]);
        let mut starts = vec![0; tree.trie().starts().len()];
        let (mut source, mut target, mut token) = (vec![-1; pairs], vec![-1; pairs], vec![-1; pairs]);
        let (mut pair_offsets, mut pair_tokens) = (vec![0; pairs + 1], vec![0; tree.trained()]);
        tree.fill(&mut RowArrays {
            input_ids: &mut ids,
            position_ids: &mut positions,
            subtree_end: &mut ends,
            cu_seqlens: &mut starts,
            source_row: &mut source,
            target: &mut target,
            token: &mut token,
            pair_offsets: &mut pair_offsets,
            pair_tokens: &mut pair_tokens,
        });
        // Check prefix and target of every trained token.
        let mut seen = BTreeSet::new();
        for pair in 0..pairs {
            let before: Vec<i64> = (0..=source[pair] as usize)
                .filter(|&row| (source[pair] as usize) < ends[row] as usize)
                .map(|row| ids[row])
                .collect();
            prop_assert_eq!(token[pair], pair_tokens[pair_offsets[pair] as usize]);
            for &place in &pair_tokens[pair_offsets[pair] as usize..pair_offsets[pair + 1] as usize] {
                prop_assert!(trained[place as usize] && seen.insert(place));
                let row = offsets.partition_point(|&offset| offset <= place) - 1;
                let own: Vec<i64> = flat[offsets[row] as usize..place as usize].iter().map(|&id| i64::from(id)).collect();
                prop_assert_eq!(&before, &own);
                prop_assert_eq!(target[pair], i64::from(flat[place as usize]));
                prop_assert_eq!(old[place as usize].to_bits(), old[token[pair] as usize].to_bits());
            }
        }
        prop_assert_eq!(seen.len(), trained.iter().filter(|&&trained| trained).count());
    }
}

#[test]
fn a_fork_inside_a_row() -> Result<()> {
    let tokens = [1, 2, 3, 4, 1, 2, 9, 1, 2, 3, 5];
    let tree = RowTree::new(Ragged::new(&tokens, &[0, 4, 7, 11])?, None, &[])?;
    let mut ends = vec![0; tree.trie().rows()];
    tree.trie().subtree_ends(&mut ends);
    // Rows are 1, 2 and 3: nothing reads 4, 5 or 9.
    assert_eq!(ends, [3, 3, 3]);
    // Eight tokens are predicted; 2 is one pair for three rows, and 3 is one pair for two rows.
    assert_eq!((tree.pairs(), tree.trained()), (5, 8));
    Ok(())
}

#[test]
fn ranks_share_one_tree() -> Result<()> {
    // Eight branches of 50 tokens on a shared prefix of 10, which fit into one pack.
    let rows: Vec<Vec<i32>> =
        (0..8).map(|branch| (0..10).chain((0..50).map(|token| 100 * (branch + 1) + token)).collect()).collect();
    let (flat, offsets) = (rows.concat(), offsets(&rows));
    let tokens = TokenRows::new(Ragged::new(&flat, &offsets)?, None)?;
    let (order, units): (_, Vec<_>) = (in_order(&tokens, 8), (0..8).map(|row| vec![row]).collect());
    let shards = Shards { ranks: 4, balance: Cost::Tokens };
    let mut sizes: Vec<usize> =
        packs(&tokens, &units, Some(&order), 1000, Some(shards))?.iter().map(Vec::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [2, 2, 2, 2]);
    assert_eq!(packs(&tokens, &units, Some(&order), 1000, None)?.len(), 1);
    Ok(())
}

#[test]
fn ranks_without_work_get_empty_packs() -> Result<()> {
    let tokens = TokenRows::new(Ragged::new(&[1, 2, 3], &[0, 3])?, None)?;
    let shards = Shards { ranks: 3, balance: Cost::Work };
    assert_eq!(packs(&tokens, &[vec![0]], None, 5, Some(shards))?, [vec![0], vec![], vec![]]);
    assert!(packs(&tokens, &[], None, 5, Some(shards))?.is_empty());
    Ok(())
}

#[test]
fn a_pair_beyond_any_column_of_a_product_is_refused() -> Result<()> {
    let whole = Credit { weights: &[1.0; 2], factors: None, advantages: &[1.0; 2], gains: None, losses: None };
    let filled = |stream: Stream<'_>| streams(vec![(stream, &mut [0.0; 1][..])], &[0, 1], &[1]);
    filled(Stream::Positive(whole))?;
    for short in [
        Credit { weights: &[1.0], ..whole },
        Credit { factors: Some(&[1.0]), ..whole },
        Credit { advantages: &[1.0], ..whole },
        Credit { gains: Some(&[1.0]), ..whole },
        Credit { losses: Some(&[1.0]), ..whole },
    ] {
        assert!(filled(Stream::Positive(short)).is_err() && filled(Stream::Negative(short)).is_err(), "{short:?}");
    }
    assert!(filled(Stream::Weight { weights: &[1.0; 2], factors: Some(&[1.0]) }).is_err());
    assert!(filled(Stream::Weight { weights: &[1.0], factors: None }).is_err());
    Ok(())
}

#[test]
fn an_advantage_that_is_no_number_is_not_lost() -> Result<()> {
    let credit = Credit { weights: &[1.0], factors: None, advantages: &[f32::NAN], gains: None, losses: None };
    for stream in [Stream::Positive(credit), Stream::Negative(credit)] {
        let mut out = [0.0];
        streams(vec![(stream, &mut out[..])], &[0, 1], &[0])?;
        assert!(out[0].is_nan());
    }
    Ok(())
}

#[test]
fn bad_input_is_named() -> Result<()> {
    let message = |made: std::result::Result<(), Error>| made.map_err(|error| error.to_string());
    let tokens = Ragged::new(&[1, 2, 3], &[0, 3])?;
    assert_eq!(
        message(RowTree::new(tokens, Some(&[true, false, false]), &[]).map(drop)),
        Err("trained is true for the first token of row 0, but no token before it can predict it; make it \
             false"
            .to_owned())
    );
    assert_eq!(
        message(TokenRows::new(tokens, Some(&[true])).map(drop)),
        Err("trained has 1 values for 3 tokens; give one for each".to_owned())
    );
    assert_eq!(
        message(fold(vec![0, 0], 1, &[true, true], &[&[1.0]]).map(drop)),
        Err("trained or a column has 1 values for 2 tokens; give one value for each token".to_owned())
    );
    let of = |offsets: [i64; 2], items: &[i64]| {
        message(streams(vec![(Stream::SumDouble(&[1.0]), &mut [0.0])], &offsets, items))
    };
    assert_eq!(
        of([0, 1], &[1]),
        Err("a pair has token 1, but a column has only 1 values; give one value for each token".to_owned())
    );
    assert!(of([0, 1], &[-1]).is_err() && of([0, 2], &[0]).is_err());
    assert!(of([1, 1], &[0]).is_err() && of([0, 0], &[]).is_err());
    assert_eq!(of([0, 1], &[0]), Ok(()));
    assert!(Cost::from_name("rows").is_err());
    let tail = Ragged::new(&[7], &[0, 1])?;
    let rows = |begins: &[i64], ends: &[i64], of: &[i64]| {
        message(Continuations::new(&[1, 2, 3], begins, ends, tail, of).map(drop))
    };
    assert_eq!(
        rows(&[0, 1], &[2, 4], &[0, 0]),
        Err("row 1 is text[1:4] and tail 0, but there are 3 text tokens and 1 tails; give places in both".to_owned())
    );
    assert!(rows(&[2], &[1], &[0]).is_err() && rows(&[-1], &[1], &[0]).is_err() && rows(&[0], &[1], &[1]).is_err());
    assert!(rows(&[0], &[1, 2], &[0]).is_err() && rows(&[0], &[1], &[]).is_err());
    assert_eq!(rows(&[3], &[3], &[0]), Ok(()));
    Ok(())
}
