//! The sum tree compared with exact sums, linear scans and chi-squared statistics.

use super::*;
use crate::rng::structural_seed;

fn random(count: usize, seed: u64) -> Vec<f64> {
    (0..count).map(|row| uniform(seed, row as u64) + 1e-9).collect()
}

/// Apply the same updates to a tree and a plain list: `rounds` rounds of `batch` updates.
fn churn(rows: usize, rounds: usize, batch: usize, whole: bool) -> Result<(SumTree, Vec<f64>)> {
    let value = |number: f64| if whole { (number * 1e6).floor() + 1.0 } else { number + 1e-9 };
    let mut plain: Vec<f64> = random(rows, 1).into_iter().map(value).collect();
    let mut tree = SumTree::new(&plain, 1.0)?;
    let (mut changed, mut priorities) = (vec![0; batch], vec![0.0; batch]);
    for round in 0..rounds {
        let seed = structural_seed(&[2, round as u64]);
        for place in 0..batch {
            let row = (uniform(seed, 2 * place as u64) * rows as f64) as usize;
            let priority = value(uniform(seed, 2 * place as u64 + 1));
            (changed[place], priorities[place], plain[row]) = (row as i64, priority, priority);
        }
        tree.update(&changed, &priorities)?;
        if round % 3 == 0 {
            tree.settle(); // else several updates wait for one
        }
    }
    tree.settle();
    Ok((tree, plain))
}

/// Whole numbers below 2^53 add up exactly in any order, so the tree must be exact.
#[test]
fn sums_are_exact_after_many_updates() -> Result<()> {
    for (rows, rounds, batch) in [(1, 3, 2), (7, 20, 7), (8, 20, 7), (9, 20, 7), (65, 20, 7), (5_000, 200, 250)] {
        let (mut tree, plain) = churn(rows, rounds, batch, true)?;
        let exact: u64 = plain.iter().map(|&priority| priority as u64).sum();
        assert_eq!(tree.total().to_bits(), (exact as f64).to_bits());
        assert_eq!(tree, SumTree::new(&plain, 1.0)?);
        let (tree, plain) = churn(rows, rounds, batch, false)?;
        assert_eq!(tree, SumTree::new(&plain, 1.0)?, "bit for bit the tree that is made anew");
    }
    Ok(())
}

/// Whole numbers, then fractions, which round. Fractions are compared with a new tree, whose sums have no history.
#[test]
fn sums_are_exact_after_ten_million_updates() -> Result<()> {
    for (rows, batch, whole) in [(1_000_003, 4_096, true), (100_000, 1_000, false)] {
        let (mut tree, plain) = churn(rows, 10_000_000_usize.div_ceil(batch), batch, whole)?;
        if whole {
            let exact: u64 = plain.iter().map(|&priority| priority as u64).sum();
            assert_eq!(tree.total().to_bits(), (exact as f64).to_bits());
        }
        assert_eq!(tree, SumTree::new(&plain, 1.0)?, "bit for bit the tree that is made anew");
    }
    Ok(())
}

/// Return the row that a target falls on, by a linear scan with exact sums.
fn naive(plain: &[f64], target: f64) -> usize {
    let mut sum = 0.0;
    plain
        .iter()
        .position(|&priority| {
            sum += priority;
            target < sum
        })
        .unwrap_or(plain.len())
}

#[test]
fn targets_fall_on_the_row_that_a_walk_along_all_rows_finds() -> Result<()> {
    for rows in [1, 2, 8, 9, 64, 65, 256, 257, 5_000] {
        let (tree, mut plain) = churn(rows, 3, 50, true)?;
        let mut tree = tree;
        // Remove every third row.
        let out: Vec<i64> = (0..rows as i64).filter(|row| row % 3 == 1).collect();
        tree.remove(&out)?;
        for &row in &out {
            plain[row as usize] = 0.0;
        }
        let total = tree.total();
        let targets: Vec<f64> =
            (0..2_000).map(|draw| (uniform(9, draw) * total).floor()).chain([0.0, total - 1.0]).collect();
        let mut found = vec![0; targets.len()];
        tree.find(&mut found, |draw| targets[draw]);
        let expected: Vec<i64> = targets.iter().map(|&target| naive(&plain, target) as i64).collect();
        assert_eq!(found, expected);
    }
    Ok(())
}

/// Whole numbers add up exactly in any order: a scan along a level ends where a descent from the root does.
#[test]
fn ascending_targets_fall_where_each_of_them_does() -> Result<()> {
    for rows in [1, 7, 9, 65, 700, 5_000] {
        let (mut tree, _) = churn(rows, 3, 50, true)?;
        tree.remove(&(0..rows as i64).filter(|row| row % 3 == 1 || *row > 600).collect::<Vec<_>>())?;
        let total = tree.total();
        for count in [1, 5, 16, 40, 400, 6_000] {
            let target = |draw: usize| (draw as f64 / count as f64 * total).floor();
            let mut walked = vec![0; count];
            let mut found = walked.clone();
            // Split the targets as two threads would.
            let (first, second) = walked.split_at_mut(count / 3);
            if !first.is_empty() {
                tree.walk(first, count, target);
            }
            tree.walk(second, count, |draw| target(draw + count / 3));
            tree.find(&mut found, target);
            assert_eq!(walked, found, "{rows} rows, {count} draws");
            assert!(found.is_sorted() && found.iter().all(|&row| tree.leaf(row as usize) > 0.0));
        }
    }
    Ok(())
}

/// A target that rounding puts beyond the sum must fall on a row with a priority.
#[test]
fn a_target_at_the_very_end_falls_on_a_row_that_can_be_drawn() -> Result<()> {
    let mut tree = SumTree::new(&vec![0.1; 1_000], 1.0)?;
    tree.remove(&(900..1_000).collect::<Vec<_>>())?;
    let mut rows = [0; 3];
    let total = tree.total();
    tree.find(&mut rows, |draw| [total, total * (1.0 + 1e-9), 0.0][draw]);
    assert_eq!(rows, [899, 899, 0]);
    Ok(())
}

/// Chi-squared test over 2^20 draws. 999 degrees of freedom: mean 999, standard deviation 44.7.
#[test]
fn rows_are_drawn_as_often_as_their_priorities_say() -> Result<()> {
    const DRAWS: usize = 1 << 20;
    let priorities = random(1_000, 3);
    for exponent in [0.0, 0.6, 1.0] {
        let mut tree = SumTree::new(&priorities, exponent)?;
        let powers: Vec<f64> = priorities.iter().map(|priority| priority.powf(exponent)).collect();
        let total: f64 = powers.iter().sum();
        for stratified in [false, true] {
            let mut counts = vec![0.0; priorities.len()];
            for part in 0..DRAWS / 4_096 {
                for row in tree.sample(4_096, structural_seed(&[part as u64]), stratified)? {
                    counts[row as usize] += 1.0;
                }
            }
            let cell = |(&count, &power): (&f64, &f64)| {
                let expected = power / total * DRAWS as f64;
                (count - expected).powi(2) / expected.max(1e-9)
            };
            let chi_squared: f64 = counts.iter().zip(&powers).map(cell).sum();
            assert!(chi_squared < 999.0 + 6.0 * 44.7, "{chi_squared}");
            // Strata only reduce the variance, so the lower bound holds without them only.
            assert!(stratified || chi_squared > 999.0 - 6.0 * 44.7, "{chi_squared}");
        }
    }
    Ok(())
}

#[test]
fn the_same_key_draws_the_same_rows_whatever_the_number_of_threads() -> Result<()> {
    let mut tree = SumTree::new(&random(100_000, 4), 0.6)?;
    let mut drawn = Vec::new();
    for threads in [1, 2, 5] {
        thread_pool::set_threads(threads)?;
        drawn.push(tree.sample(3 * DRAWS_PER_THREAD + 7, 11, true)?);
    }
    assert_eq!(drawn[0], drawn[1]);
    assert_eq!(drawn[0], drawn[2]);
    assert!(drawn[0].is_sorted());
    assert_ne!(drawn[0], tree.sample(3 * DRAWS_PER_THREAD + 7, 12, true)?);
    Ok(())
}

/// Priorities 1, 3, 4 with exponent 1: p = 1/8, 3/8, 1/2, and 3 p = 3/8, 9/8, 3/2. Weights with beta 1: 8/3, 8/9, 2/3.
/// Divided by the largest of rows 1 and 2, 8/9: 1 and 3/4. Divided by the largest of all rows, 8/3: 1/3 and 1/4.
#[test]
fn importance_weights_by_hand() -> Result<()> {
    let mut tree = SumTree::new(&[1.0, 3.0, 4.0], 1.0)?;
    let close = |found: Vec<f64>, expected: [f64; 2]| {
        assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-15), "{found:?}");
    };
    close(tree.weights(&[1, 2], 1.0, Normalise::None)?, [8.0 / 9.0, 2.0 / 3.0]);
    close(tree.weights(&[1, 2], 1.0, Normalise::Drawn)?, [1.0, 0.75]);
    close(tree.weights(&[1, 2], 1.0, Normalise::All)?, [1.0 / 3.0, 0.25]);
    close(tree.weights(&[1, 2], 0.5, Normalise::Drawn)?, [1.0, 0.75_f64.sqrt()]);
    close(tree.weights(&[1, 2], 0.0, Normalise::All)?, [1.0, 1.0]);
    Ok(())
}

#[test]
fn an_invalid_priority_is_refused_and_changes_nothing() -> Result<()> {
    let mut tree = SumTree::new(&[1.0, 2.0], 1.0)?;
    let before = tree.clone();
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let message = SumTree::new(&[1.0, wrong], 1.0).map_err(|error| error.to_string());
        assert!(message.is_err_and(|message| {
            message.starts_with(&format!("priorities[1] is {wrong}; give a finite number above 0"))
        }));
        assert!(tree.update(&[0, 1], &[5.0, wrong]).is_err());
        assert_eq!(tree, before);
    }
    assert!(tree.update(&[0, 1], &[f64::MAX, f64::MAX]).is_err(), "the sum is infinite");
    assert!(tree.update(&[0, 2], &[1.0, 1.0]).is_err());
    assert!(tree.update(&[0, -1], &[1.0, 1.0]).is_err());
    assert!(tree.update(&[0], &[1.0, 1.0]).is_err());
    assert!(tree.remove(&[2]).is_err() && tree.probability(2).is_err());
    assert_eq!(tree, before);
    assert!(SumTree::new(&[1e-300], 2.0).is_err(), "the power is 0");
    assert!(SumTree::new(&[1.0], -0.5).is_err() && SumTree::new(&[1.0], f64::NAN).is_err());
    assert!(tree.weights(&[0], f64::NAN, Normalise::None).is_err());
    tree.remove(&[0, 1])?;
    assert!(tree.sample(1, 0, true).is_err() && tree.sample(0, 0, true).is_ok_and(|rows| rows.is_empty()));
    assert!(tree.weights(&[0], 1.0, Normalise::None).is_err());
    assert!(SumTree::new(&[], 1.0).is_ok_and(|mut tree| tree.is_empty() && tree.total() <= 0.0));
    assert!(SumTree::new(&[], 1.0)?.sample(1, 0, false).is_err());
    Ok(())
}

#[test]
fn of_a_row_that_is_named_twice_the_last_priority_counts() -> Result<()> {
    let mut tree = SumTree::new(&[1.0; 40], 1.0)?;
    tree.update(&[3, 39, 3], &[7.0, 2.0, 5.0])?;
    assert_eq!((tree.total(), tree.probability(3)?, tree.len()), (45.0, 5.0 / 45.0, 40));
    Ok(())
}
