#![expect(clippy::float_cmp, reason = "exact by construction")]

use proptest::prelude::*;

use super::*;
use crate::group::{Columns, Extra, Options, normalise};
use crate::thread_pool;

/// Sequences with masks, ends and bootstraps.
#[derive(Clone, Debug)]
struct Case {
    offsets: Vec<i64>,
    mask: Vec<bool>,
    ends: Vec<bool>,
    bootstrap: Vec<f64>,
    rewards: Vec<f64>,
    values: Vec<f64>,
    log_ratios: Vec<f64>,
}

impl Case {
    fn paths(&self) -> Paths<'_, f64> {
        Paths {
            offsets: &self.offsets,
            mask: Some(&self.mask),
            ends: Some(&self.ends),
            bootstrap: Some(&self.bootstrap),
        }
    }

    /// For each policy row: the policy rows from it to the next end, itself first, and the bootstrap of that end.
    fn futures(&self) -> Vec<Option<(Vec<usize>, f64)>> {
        let future = |row: usize| {
            let limit = self.offsets.iter().map(|&end| end as usize).find(|&end| end > row)?;
            let last = (row..limit).find(|&later| self.ends[later]).unwrap_or(limit - 1);
            self.mask[row].then(|| ((row..=last).filter(|&later| self.mask[later]).collect(), self.bootstrap[last]))
        };
        (0..self.rewards.len()).map(future).collect()
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let row = (any::<bool>(), 0..5_u8, -2.0_f64..2.0, -2.0_f64..2.0, -2.0_f64..2.0, -1.0_f64..1.0);
    (prop::collection::vec(row, 0..40), prop::collection::vec(0_usize..40, 0..6)).prop_map(|(rows, cuts)| {
        let mut offsets: Vec<i64> = cuts.iter().map(|cut| (cut % (rows.len() + 1)) as i64).collect();
        offsets.extend([0, rows.len() as i64]);
        offsets.sort_unstable();
        Case {
            offsets,
            mask: rows.iter().map(|row| row.0).collect(),
            ends: rows.iter().map(|row| row.1 == 0).collect(),
            bootstrap: rows.iter().map(|row| row.2).collect(),
            rewards: rows.iter().map(|row| row.3).collect(),
            values: rows.iter().map(|row| row.4).collect(),
            log_ratios: rows.iter().map(|row| row.5).collect(),
        }
    })
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() < 1e-11 * (1.0 + expected.abs())
}

proptest! {
    /// Compare each result with the sum that defines it.
    #[test]
    fn as_the_sums(case in cases(), gamma in 0.0_f64..=1.0, lam in 0.0_f64..=1.0, steps in 1_usize..5) {
        let rows = case.rewards.len();
        let [mut to_come, mut advantages, mut returns, mut few] = [(); 4].map(|()| vec![7.0; rows]);
        discounted(&case.rewards, &case.paths(), gamma, &mut to_come)?;
        gae(&case.rewards, &case.values, &case.paths(), &Gae { gamma, lam, whiten: None }, [&mut advantages, &mut returns])?;
        n_step(&case.rewards, &case.values, &case.paths(), gamma, steps, &mut few)?;
        for (row, future) in case.futures().into_iter().enumerate() {
            let Some((later, after)) = future else {
                prop_assert_eq!([to_come[row], advantages[row], returns[row], few[row]], [0.0; 4]);
                continue;
            };
            let power = |base: f64, count: usize| base.powi(count as i32);
            let paid: f64 = later.iter().enumerate().map(|(k, &row)| power(gamma, k) * case.rewards[row]).sum();
            prop_assert!(close(to_come[row], paid + power(gamma, later.len()) * after));
            let value = |k: usize| later.get(k).map_or(after, |&row| case.values[row]);
            let delta = |k: usize| case.rewards[later[k]] + gamma * value(k + 1) - value(k);
            let advantage: f64 = (0..later.len()).map(|k| power(gamma * lam, k) * delta(k)).sum();
            prop_assert!(close(advantages[row], advantage));
            prop_assert!(close(returns[row], advantage + value(0)));
            let stop = steps.min(later.len());
            let paid: f64 = (0..stop).map(|k| power(gamma, k) * case.rewards[later[k]]).sum();
            prop_assert!(close(few[row], paid + power(gamma, stop) * value(stop)));
        }
    }

    /// Compare with the definition as a product of trace weights; on-policy it is the lambda-return.
    #[test]
    fn v_trace_as_the_sum(case in cases(), gamma in 0.0_f64..=1.0, lam in 0.0_f64..=1.0) {
        let rows = case.rewards.len();
        let options = VTrace { gamma, lam, rho_at_most: 1.2, c_at_most: 0.9 };
        let [mut advantages, mut targets, mut plain, mut returns] = [(); 4].map(|()| vec![7.0; rows]);
        v_trace(&case.rewards, &case.values, &case.log_ratios, &case.paths(), &options, [&mut advantages, &mut targets])?;
        let target = |later: &[usize], after: f64| -> f64 {
            let value = |k: usize| later.get(k).map_or(after, |&row| case.values[row]);
            let mut weight = 1.0;
            let terms = later.iter().enumerate().map(|(k, &row)| {
                let ratio = case.log_ratios[row].exp();
                let term = weight * ratio.min(1.2) * (case.rewards[row] + gamma * value(k + 1) - value(k));
                weight *= gamma * lam * ratio.min(0.9);
                term
            });
            value(0) + terms.sum::<f64>()
        };
        for (row, future) in case.futures().into_iter().enumerate() {
            let Some((later, after)) = future else { continue };
            prop_assert!(close(targets[row], target(&later, after)));
            let rho = case.log_ratios[row].exp().min(1.2);
            let next = target(&later[1..], after);
            prop_assert!(close(advantages[row], rho * (case.rewards[row] + gamma * next - case.values[row])));
        }
        let on_policy = VTrace { gamma, lam, ..VTrace::default() };
        v_trace(&case.rewards, &case.values, &vec![0.0; rows], &case.paths(), &on_policy, [&mut advantages, &mut targets])?;
        gae(&case.rewards, &case.values, &case.paths(), &Gae { gamma, lam, whiten: None }, [&mut plain, &mut returns])?;
        prop_assert!(targets.iter().zip(&returns).all(|(&found, &expected)| close(found, expected)));
    }

    /// Compute every position by itself, with lists.
    #[test]
    fn token_baseline_as_lists(case in cases(), seed in any::<u64>(), zero_tail in any::<bool>()) {
        let sequences = case.offsets.len() - 1;
        let groups: Vec<u32> = (0..sequences as u64).map(|row| (crate::rng::uniform(seed, row) * 2.0) as u32)
            .map(|group| group.min(sequences as u32 - 1)).collect();
        let energies: Vec<f64> = case.log_ratios.iter().map(|value| value.abs() + 0.1).collect();
        let options = TokenBaseline { zero_tail, ..TokenBaseline::default() };
        let found = optimal_token_baseline(&case.rewards, &energies, &case.paths(), &groups, &options)?;
        let rows: Vec<Vec<usize>> = case.offsets.windows(2)
            .map(|bounds| (bounds[0] as usize..bounds[1] as usize).filter(|&row| case.mask[row]).collect()).collect();
        for (mine, own) in rows.iter().enumerate() {
            let peers: Vec<&Vec<usize>> =
                (0..sequences).filter(|&peer| groups[peer] == groups[mine] && !rows[peer].is_empty()).map(|peer| &rows[peer]).collect();
            let mut others: Vec<usize> = peers.iter().map(|peer| peer.len()).collect();
            others.sort_unstable();
            for (place, &row) in own.iter().enumerate() {
                let weight = |peer: &[usize]| peer[..=place].iter().map(|&row| energies[row]).sum::<f64>();
                let there: Vec<&&Vec<usize>> = peers.iter().filter(|peer| peer.len() > place).collect();
                let above: f64 = there.iter().map(|peer| case.rewards[peer[place]] * weight(peer)).sum();
                let below: f64 = there.iter().map(|peer| weight(peer)).sum();
                let beyond = zero_tail && others.len() > 1 && there.len() == 1 && others[others.len() - 2] <= place;
                let baseline = if peers.len() < 2 || beyond { 0.0 } else { above / (below + 1e-8) };
                prop_assert!(close(found[row], case.rewards[row] - baseline), "{} {}", found[row], case.rewards[row] - baseline);
            }
        }
    }
}

/// The four ways to treat a truncated episode are a choice of bootstrap and mask.
#[test]
fn a_truncated_episode_can_be_treated_in_four_ways() -> Result<()> {
    let (rewards, values) = ([1.0, 1.0], [0.5, 0.25]);
    let run = |paths: Paths<'_, f64>| -> Result<[f64; 2]> {
        let [mut advantages, mut returns] = [[0.0; 2]; 2];
        gae(&rewards, &values, &paths, &Gae { gamma: 1.0, lam: 1.0, whiten: None }, [&mut advantages, &mut returns])?;
        Ok(advantages)
    };
    let paths = Paths::new(&[0, 2]);
    assert_eq!(run(paths)?, [1.5, 0.75]);
    assert_eq!(run(Paths { bootstrap: Some(&[0.0, 2.0]), ..paths })?, [3.5, 2.75]);
    assert_eq!(run(Paths { bootstrap: Some(&values), ..paths })?, [1.75, 1.0]);
    let dropped = Paths { mask: Some(&[true, false]), ends: Some(&[false, true]), bootstrap: Some(&values), ..paths };
    assert_eq!(run(dropped)?, [0.75, 0.0]);
    Ok(())
}

#[test]
fn invalid_input_is_reported() {
    let message = |rewards: &[f64], paths: Paths<'_, f64>, gamma: f64| {
        let mut out = vec![0.0; rewards.len()];
        discounted(rewards, &paths, gamma, &mut out).map_or_else(|error| error.to_string(), |()| "fine".to_owned())
    };
    assert_eq!(message(&[], Paths::new(&[0]), 1.0), "fine");
    assert_eq!(message(&[1.0], Paths::new(&[0, 1]), 1.5), "gamma is 1.5; give a number from 0 to 1");
    assert_eq!(message(&[1.0], Paths::new(&[0, 1]), f64::NAN), "gamma is NaN; give a number from 0 to 1");
    assert!(message(&[1.0], Paths::new(&[0, 2]), 1.0).starts_with("offsets range from 0 to 2"));
    assert!(message(&[1.0; 2], Paths::new(&[0, 2, 1, 2]), 1.0).starts_with("offsets[2] is 1, less than 2"));
    assert_eq!(
        message(&[1.0], Paths { mask: Some(&[]), ..Paths::new(&[0, 1]) }, 1.0),
        "mask has 0 values, but rewards has 1; give one value of each for every row"
    );
    assert_eq!(
        message(&[1.0, f64::NAN], Paths::new(&[0, 2]), 1.0),
        "rewards[1] is NaN, but must be finite; correct it or mark the row invalid"
    );
    let whitened =
        gae::<f64>(&[], &[], &Paths::new(&[0]), &Gae { gamma: 1.0, lam: 1.0, whiten: Some(-1.0) }, [&mut [], &mut []]);
    assert_eq!(
        whitened.map_err(|error| error.to_string()),
        Err("whiten is -1; give a number of at least 0".to_owned())
    );
    assert!(message(&[f64::MAX; 2], Paths::new(&[0, 2]), 1.0).starts_with("a result of rows 0 to 2 is too large"));
    for (offsets, rows) in [(vec![0, 1, 1, 3], "1 to 3"), (vec![0, 2, 3], "0 to 2"), (vec![0, 0, 0, 3], "0 to 3")] {
        let found = message(&[f64::MAX; 3], Paths::new(&offsets), 1.0);
        assert!(found.starts_with(&format!("a result of rows {rows} is too large")), "{offsets:?}: {found}");
    }
    let masked = Paths { mask: Some(&[true, false]), ..Paths::new(&[0, 2]) };
    assert_eq!(message(&[1.0, f64::NAN], masked, 1.0), "fine");
}

#[test]
fn any_number_of_threads_gives_the_same_bits() -> Result<()> {
    let rows = 6 * thread_pool::PIECE;
    let rewards: Vec<f32> = (0..rows as u64).map(|row| crate::rng::uniform(3, row) as f32 - 0.5).collect();
    let offsets: Vec<i64> = (0..=rows as i64).step_by(96).collect();
    let mask: Vec<bool> = (0..rows).map(|row| row % 7 < 5).collect();
    let one = vec![0; rows];
    let options = Options { eps: 0.0, variance_eps: 1e-8, ..Options::default() };
    let mut expected = None;
    for threads in [1, 2, 4] {
        thread_pool::set_threads(threads)?;
        let [mut advantages, mut returns, mut white, mut same] = [(); 4].map(|()| vec![0.0_f32; rows]);
        let paths = Paths { mask: Some(&mask), ..Paths::new(&offsets) };
        gae(
            &rewards,
            &rewards,
            &paths,
            &Gae { gamma: 0.99, lam: 0.95, whiten: None },
            [&mut advantages, &mut returns],
        )?;
        gae(&rewards, &rewards, &paths, &Gae { gamma: 0.99, lam: 0.95, whiten: Some(1e-8) }, [&mut white, &mut same])?;
        assert_eq!(returns, same);
        let columns = Columns { valid: Some(&mask), ..Columns::new("advantages", &advantages, &one) };
        normalise(&columns, &options, Extra::default(), &mut same)?;
        assert_eq!(white, same);
        let bits: Vec<u32> = advantages.iter().chain(&returns).chain(&white).map(|value| value.to_bits()).collect();
        assert_eq!(*expected.get_or_insert_with(|| bits.clone()), bits);
    }
    Ok(())
}
