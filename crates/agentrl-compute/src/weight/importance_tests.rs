//! Tests of importance weights and divergences, against products and minima by definition.

use proptest::prelude::*;

use super::{Action, Aggregate, Divergence, ImportanceOptions, Level, Ratios, TrustRegion, importance_diagnostics};
use crate::{Result, thread_pool};

const PLAIN: ImportanceOptions<'_> =
    ImportanceOptions { level: Level::Token, steps: None, at_least: None, at_most: None, action: Action::Truncate };

fn importance_weights(ratios: &Ratios<'_, f64>, options: &ImportanceOptions<'_>) -> Result<Vec<f64>> {
    let mut out = vec![f64::NAN; ratios.log_ratios.len()];
    super::importance_weights(ratios, options, &mut out)?;
    Ok(out)
}

fn trust_region(ratios: &Ratios<'_, f64>, region: &TrustRegion) -> Result<Vec<bool>> {
    let mut out = vec![false; ratios.log_ratios.len()];
    super::trust_region(ratios, region, &mut out)?;
    Ok(out)
}

fn message<T>(result: Result<T>) -> String {
    result.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
}

#[test]
fn invalid_input_is_reported() {
    let ratios = Ratios { log_ratios: &[0.0, 0.5, 1.0], offsets: &[0, 2, 3], mask: None };
    let weights = |options: ImportanceOptions<'_>| message(importance_weights(&ratios, &options));
    assert!(weights(ImportanceOptions { at_least: Some(0.0), ..PLAIN }).starts_with("at_least is 0 and at_most inf"));
    assert!(
        weights(ImportanceOptions { at_least: Some(3.0), at_most: Some(2.0), ..PLAIN }).starts_with("at_least is 3")
    );
    assert!(weights(ImportanceOptions { level: Level::Step, ..PLAIN }).starts_with("steps is missing"));
    assert!(weights(ImportanceOptions { steps: Some(&[0, 3]), ..PLAIN }).starts_with("steps is given"));
    let step = |steps| ImportanceOptions { level: Level::Step, steps: Some(steps), ..PLAIN };
    assert!(weights(step(&[0, 3])).starts_with("steps has a step across token 2"));
    assert!(weights(step(&[0, 2])).starts_with("steps go from 0 to 2, but there are 3 tokens"));
    assert_eq!(weights(step(&[0, 1, 2, 2, 3])), "fine");
    let none = Ratios { mask: Some(&[false; 3]), ..ratios };
    assert!(message(importance_diagnostics(&none)).starts_with("mask excludes all tokens"));
    let region =
        TrustRegion { divergence: Divergence::K1, aggregate: Aggregate::Token, at_least: Some(1.0), at_most: 0.0 };
    assert_eq!(message(trust_region(&ratios, &region)), "at_least is 1 and at_most 0; give at_least <= at_most");
    let bad = Ratios { log_ratios: &[0.0, f64::NAN, 1.0], ..ratios };
    assert!(message(importance_weights(&bad, &PLAIN)).starts_with("log_ratios[1] is NaN"));
    assert_eq!(message(importance_weights(&Ratios { mask: Some(&[true, false, true]), ..bad }, &PLAIN)), "fine");
    assert!(Level::from_name("word").is_err() && Action::from_name("cut").is_err());
    assert!(Divergence::from_name("k4").is_err() && Aggregate::from_name("min").is_err());
}

#[test]
fn beyond_the_bounds() -> Result<()> {
    let ratios = Ratios { log_ratios: &[0.0, 2.0, -2.0, 0.5], offsets: &[0, 3, 4], mask: None };
    let options = |action| ImportanceOptions { at_least: Some(0.5), at_most: Some(2.0), action, ..PLAIN };
    let last = 0.5_f64.exp();
    assert_eq!(importance_weights(&ratios, &options(Action::Truncate))?, [1.0, 2.0, 0.5, last]);
    assert_eq!(importance_weights(&ratios, &options(Action::Mask))?, [1.0, 0.0, 0.0, last]);
    assert_eq!(importance_weights(&ratios, &options(Action::Filter))?, [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(importance_weights(&ratios, &options(Action::Veto))?, [0.0, 0.0, 0.0, last]);
    Ok(())
}

/// Rows of several pieces, one of them longer than a piece; f32 results are the rounded f64 results.
#[test]
fn any_number_of_threads_gives_the_same_bits() -> Result<()> {
    let offsets =
        [0, 7, 7, 2 * thread_pool::PIECE as i64, 2 * thread_pool::PIECE as i64 + 5, 3 * thread_pool::PIECE as i64];
    let tokens = 3 * thread_pool::PIECE as u64;
    let log_ratios: Vec<f32> = (0..tokens).map(|token| (crate::rng::uniform(5, token) - 0.5) as f32).collect();
    let mask: Vec<bool> = (0..tokens).map(|token| crate::rng::uniform(6, token) < 0.8).collect();
    let wide: Vec<f64> = log_ratios.iter().copied().map(f64::from).collect();
    let ratios = Ratios { log_ratios: &log_ratios[..], offsets: &offsets, mask: Some(&mask) };
    let wide = Ratios { log_ratios: &wide, offsets: &offsets, mask: Some(&mask) };
    let region =
        TrustRegion { divergence: Divergence::K3, aggregate: Aggregate::Mean, at_least: None, at_most: 0.0416 };
    let options = ImportanceOptions { level: Level::Prefix, at_most: Some(2.0), ..PLAIN };
    let mut expected = None;
    for threads in [1, 2, 4] {
        thread_pool::set_threads(threads)?;
        let mut weights = vec![0.0; log_ratios.len()];
        super::importance_weights(&ratios, &options, &mut weights)?;
        let found = (weights, trust_region(&wide, &region)?, importance_diagnostics(&wide)?);
        let rounded = importance_weights(&wide, &options)?.into_iter().map(|weight| (weight as f32).to_bits());
        assert!(rounded.eq(found.0.iter().map(|weight| weight.to_bits())));
        assert_eq!(*expected.get_or_insert_with(|| found.clone()), found);
    }
    Ok(())
}

#[test]
fn weights_far_apart_do_not_overflow() -> Result<()> {
    let far = Ratios { log_ratios: &[500.0, 500.0, 400.0], offsets: &[0, 1, 2, 3], mask: None };
    let found = importance_diagnostics(&far)?;
    assert!((found.effective_sample_size - 2.0).abs() < 1e-12);
    assert!((found.ratio_max / 20.0_f64.exp() - 1.0).abs() < 1e-12);
    Ok(())
}

proptest! {
    #[test]
    fn levels_by_definition(rows in prop::collection::vec(prop::collection::vec((-2.0_f64..2.0, 0_u8..4), 0..7), 0..6)) {
        let mut offsets = vec![0];
        offsets.extend(rows.iter().scan(0, |end, row| { *end += row.len() as i64; Some(*end) }));
        let tokens: Vec<(f64, u8)> = rows.concat();
        let log_ratios: Vec<f64> = tokens.iter().map(|token| token.0).collect();
        let mask: Vec<bool> = tokens.iter().map(|token| token.1 > 0).collect();
        let ratios = Ratios { log_ratios: &log_ratios, offsets: &offsets, mask: Some(&mask) };
        // Each row is split into steps of two tokens.
        let mut steps = vec![0];
        for (row, start) in rows.iter().zip(&offsets) {
            steps.extend((0..row.len()).step_by(2).map(|at| start + (at + 2).min(row.len()) as i64));
        }
        for level in ["token", "step", "step_geometric", "sequence", "geometric", "prefix", "prefix_min"] {
            let has_steps = level.starts_with("step");
            let options = ImportanceOptions {
                level: Level::from_name(level)?, steps: has_steps.then_some(&steps[..]), ..PLAIN
            };
            let found = importance_weights(&ratios, &options)?;
            let mut token = 0;
            for row in &rows {
                for at in 0..row.len() {
                    let of = |range: std::ops::Range<usize>| -> Vec<f64> {
                        row[range].iter().filter(|token| token.1 > 0).map(|token| token.0.exp()).collect()
                    };
                    let near = of(at / 2 * 2..(at / 2 * 2 + 2).min(row.len()));
                    let product = |values: Vec<f64>| values.iter().product::<f64>();
                    let geometric = |values: Vec<f64>| product(values.clone()).powf(1.0 / values.len() as f64);
                    let own = row[at].0.exp();
                    let expected = match level {
                        _ if row[at].1 == 0 => 0.0,
                        "token" => own,
                        "step" => product(near),
                        "step_geometric" => geometric(near),
                        "sequence" => product(of(0..row.len())),
                        "geometric" => geometric(of(0..row.len())),
                        "prefix" => product(of(0..at + 1)),
                        _ => own * of(0..at).into_iter().reduce(f64::min).unwrap_or(1.0),
                    };
                    prop_assert!((found[token] - expected).abs() <= 1e-9 * expected.max(1.0), "{level} {} {expected}", found[token]);
                    token += 1;
                }
            }
        }
    }

    #[test]
    fn divergences_by_definition(d in prop::collection::vec(-1.0_f64..1.0, 1..9), cut in 0.0_f64..0.5) {
        let offsets = [0, d.len() as i64];
        let ratios = Ratios { log_ratios: &d, offsets: &offsets, mask: None };
        let count = d.len() as f64;
        let k3: Vec<f64> = d.iter().map(|d| d.exp() - 1.0 - d).collect();
        for (aggregate, value) in [
            (Aggregate::Sum, k3.iter().sum::<f64>()),
            (Aggregate::Mean, k3.iter().sum::<f64>() / count),
            (Aggregate::Max, k3.iter().copied().fold(0.0, f64::max)),
        ] {
            let region = TrustRegion { divergence: Divergence::K3, aggregate, at_least: None, at_most: cut };
            prop_assert!((value - cut).abs() < 1e-12 || trust_region(&ratios, &region)?.iter().all(|&keep| keep == (value < cut)));
        }
        let found = importance_diagnostics(&ratios)?;
        prop_assert!((found.k1 + d.iter().sum::<f64>() / count).abs() < 1e-12);
        prop_assert!((found.k2 - d.iter().map(|d| d * d / 2.0).sum::<f64>() / count).abs() < 1e-12);
        prop_assert!((found.k3 - k3.iter().sum::<f64>() / count).abs() < 1e-12);
        prop_assert!((found.chi_squared_token + 1.0 - d.iter().map(|d| (2.0 * d).exp()).sum::<f64>() / count).abs() < 1e-12);
        prop_assert!((found.chi_squared_sequence + 1.0 - (2.0 * d.iter().sum::<f64>()).exp()).abs() < 1e-9 * (found.chi_squared_sequence + 1.0));
        prop_assert_eq!((found.rows, found.tokens), (1, d.len() as u64));
    }
}
