//! Rewards for Python: columns in, columns out.

use std::borrow::Cow;

use agentrl_compute::keys::{dense_bytes_of, pair};
use agentrl_compute::ragged::Ragged;
use agentrl_compute::reward::{self, Checklist, Gain, MaxAtK, Noise, ProgressOptions, Tail, TailRisk};
use numpy::{IntoPyArray as _, PyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::columns::{Column, Made, made, optional, run};
use crate::arrays::{Name, Whole, slice};
use crate::error::invalid;

/// Reward kernels.
#[pymodule(submodule, name = "reward", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{
        answer_ids, checklist, cluster_votes, dither, edit_distances, excess_penalty, implicit, information_gain,
        max_at_k, rank_agreement, success_distance, tail_risk, top_gap, tracked_quantiles, win_rates, window_means,
    };
}

#[pyfunction]
fn excess_penalty<'py>(
    py: Python<'py>,
    amounts: Column<'py, f64>,
    free: f64,
    full_at: f64,
    coefficient: f64,
    at_most: Option<f64>,
) -> PyResult<Made<'py, f64>> {
    let amounts = slice("amounts", &amounts)?;
    made(py, amounts.len(), || reward::excess_penalty(amounts, free, full_at, coefficient, at_most))
}

#[pyfunction]
fn dither<'py>(
    py: Python<'py>,
    scores: Column<'py, f64>,
    ids: Column<'py, i64>,
    seed: Whole<u64>,
    amplitude: f64,
    kind: Name,
) -> PyResult<Made<'py, f64>> {
    let (scores, ids, seed) = (slice("scores", &scores)?, slice("ids", &ids)?, seed.named("seed")?);
    made(py, scores.len(), || reward::dither(scores, ids, seed, amplitude, Noise::from_name(&kind)?))
}

#[pyfunction]
#[pyo3(signature = (rewards, groups, *, k, leave_one_out, ratio_excess=None, valid=None))]
fn max_at_k<'py>(
    py: Python<'py>,
    rewards: Column<'py, f64>,
    groups: Column<'py, u32>,
    k: Whole<u32>,
    leave_one_out: bool,
    ratio_excess: Option<Column<'py, f64>>,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, f64>> {
    let (rewards, groups) = (slice("rewards", &rewards)?, slice("groups", &groups)?);
    let valid = optional("valid", valid.as_ref())?;
    let ratio_excess = optional("ratio_excess", ratio_excess.as_ref())?;
    let options = MaxAtK { k: k.named("k")?, leave_one_out, ratio_excess };
    made(py, rewards.len(), || reward::max_at_k(rewards, groups, valid, &options))
}

#[pyfunction]
#[pyo3(signature = (rewards, groups, *, valid=None))]
fn top_gap<'py>(
    py: Python<'py>,
    rewards: Column<'py, f64>,
    groups: Column<'py, u32>,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, f64>> {
    let (rewards, groups) = (slice("rewards", &rewards)?, slice("groups", &groups)?);
    let valid = optional("valid", valid.as_ref())?;
    made(py, rewards.len(), || reward::top_gap(rewards, groups, valid))
}

#[pyfunction]
fn win_rates<'py>(
    py: Python<'py>,
    first: Column<'py, i64>,
    second: Column<'py, i64>,
    probability: Column<'py, f64>,
    count: Whole<usize>,
) -> PyResult<Made<'py, f64>> {
    let (first, second) = (slice("first", &first)?, slice("second", &second)?);
    let (probability, count) = (slice("probability", &probability)?, count.named("count")?);
    made(py, first.len(), || reward::win_rates(first, second, probability, count))
}

/// Return ids of answers (uint32), and whether each row has an answer (bool). Rows of a group have equal ids if their
/// texts are equal, or if both have no answer.
#[pyfunction]
fn answer_ids<'py>(
    py: Python<'py>,
    answers: &Bound<'py, PyList>,
    groups: Column<'py, u32>,
) -> PyResult<(Made<'py, u32>, Made<'py, bool>)> {
    let items: Vec<Bound<'py, PyAny>> = answers.iter().collect();
    let texts = items.iter().enumerate().map(|(row, item)| answer(row, item)).collect::<PyResult<Vec<_>>>()?;
    let groups = slice("group_ids", &groups)?;
    let ids = run(py, texts.len(), || {
        // No UTF-8 text contains this byte.
        let texts = dense_bytes_of(texts.len(), |row| texts[row].as_deref().unwrap_or(b"\xff"))?;
        Ok(pair(groups, &texts.ids)?.ids)
    })?;
    Ok((PyArray1::from_vec(py, ids), PyArray1::from_iter(py, items.iter().map(|item| !item.is_none()))))
}

/// Return the text of an answer as bytes; `None` without an answer.
fn answer<'a>(row: usize, item: &'a Bound<'_, PyAny>) -> PyResult<Option<Cow<'a, [u8]>>> {
    if item.is_none() {
        return Ok(None);
    }
    let Ok(text) = item.cast::<PyString>() else {
        let kind = item.get_type().name()?;
        return Err(invalid(format!("answers[{row}] is {kind}; give a text, or None without an answer")));
    };
    if let Ok(text) = text.to_str() {
        return Ok(Some(Cow::Borrowed(text.as_bytes())));
    }
    // A lone surrogate is not Unicode, but it can still be compared.
    Ok(Some(Cow::Owned(text.call_method1("encode", ("utf-8", "surrogatepass"))?.extract()?)))
}

/// Shares, winners, entropies, cluster entropies, and numbers of clusters.
type Votes<'py> = (Made<'py, f64>, Made<'py, bool>, Made<'py, f64>, Made<'py, f64>, Made<'py, u32>);

#[pyfunction]
#[pyo3(signature = (clusters, groups, parsed=None, weights=None))]
fn cluster_votes<'py>(
    py: Python<'py>,
    clusters: Column<'py, u32>,
    groups: Column<'py, u32>,
    parsed: Option<Column<'py, bool>>,
    weights: Option<Column<'py, f64>>,
) -> PyResult<Votes<'py>> {
    let (clusters, groups) = (slice("clusters", &clusters)?, slice("groups", &groups)?);
    let (parsed, weights) = (optional("parsed", parsed.as_ref())?, optional("weights", weights.as_ref())?);
    let votes = run(py, clusters.len(), || reward::cluster_votes(clusters, groups, parsed, weights))?;
    let of_groups = (votes.entropies.into_pyarray(py), votes.cluster_entropies.into_pyarray(py));
    let of_rows = (votes.shares.into_pyarray(py), votes.winners.into_pyarray(py));
    Ok((of_rows.0, of_rows.1, of_groups.0, of_groups.1, votes.counts.into_pyarray(py)))
}

#[pyfunction]
fn tracked_quantiles<'py>(
    py: Python<'py>,
    state: Option<Column<'py, f64>>,
    values: Column<'py, f64>,
    levels: Column<'py, f64>,
    step_size: f64,
) -> PyResult<(Made<'py, f64>, Made<'py, f64>)> {
    let (values, levels) = (slice("values", &values)?, slice("levels", &levels)?);
    let state = optional("state", state.as_ref())?;
    let (read, next) = run(py, values.len(), || reward::tracked_quantiles(state, values, levels, step_size))?;
    Ok((PyArray1::from_vec(py, read), PyArray1::from_vec(py, next)))
}

#[pyfunction]
#[pyo3(signature = (scores, low, high, *, alpha_low, alpha_high, omega, natural_baseline, tail, curve=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn tail_risk<'py>(
    py: Python<'py>,
    scores: Column<'py, f64>,
    low: Column<'py, f64>,
    high: Column<'py, f64>,
    alpha_low: f64,
    alpha_high: f64,
    omega: f64,
    natural_baseline: bool,
    tail: Name,
    curve: Option<(Column<'py, f64>, Column<'py, f64>)>,
) -> PyResult<Made<'py, f64>> {
    let (scores, low, high) = (slice("scores", &scores)?, slice("low", &low)?, slice("high", &high)?);
    let curve = match &curve {
        Some((levels, quantiles)) => Some((slice("levels", levels)?, slice("quantiles", quantiles)?)),
        None => None,
    };
    made(py, scores.len(), || {
        let tail = Tail::from_name(&tail)?;
        let options = TailRisk { alpha_low, alpha_high, omega, natural_baseline, tail, curve };
        reward::tail_risk(scores, low, high, &options)
    })
}

#[pyfunction]
fn window_means<'py>(
    py: Python<'py>,
    values: Column<'py, f64>,
    offsets: Column<'py, i64>,
    width: Whole<usize>,
) -> PyResult<Made<'py, f64>> {
    let (values, offsets) = (slice("values", &values)?, slice("offsets", &offsets)?);
    let width = width.named("width")?;
    made(py, values.len(), || reward::window_means(Ragged::new(values, offsets)?, width))
}

#[pyfunction]
fn information_gain<'py>(
    py: Python<'py>,
    answer_logprobs: Column<'py, f64>,
    offsets: Column<'py, i64>,
    before: Column<'py, f64>,
    kind: Name,
) -> PyResult<Made<'py, f64>> {
    let (logprobs, offsets) = (slice("answer_logprobs", &answer_logprobs)?, slice("offsets", &offsets)?);
    let before = slice("before", &before)?;
    made(py, logprobs.len(), || {
        reward::information_gain(Ragged::new(logprobs, offsets)?, before, Gain::from_name(&kind)?)
    })
}

#[pyfunction]
fn edit_distances<'py>(
    py: Python<'py>,
    first: Column<'py, u32>,
    first_offsets: Column<'py, i64>,
    second: Column<'py, u32>,
    second_offsets: Column<'py, i64>,
) -> PyResult<Made<'py, i64>> {
    let (first, first_offsets) = (slice("first", &first)?, slice("first_offsets", &first_offsets)?);
    let (second, second_offsets) = (slice("second", &second)?, slice("second_offsets", &second_offsets)?);
    made(py, first.len(), || {
        reward::edit_distances(Ragged::new(first, first_offsets)?, Ragged::new(second, second_offsets)?)
    })
}

#[pyfunction]
fn rank_agreement<'py>(
    py: Python<'py>,
    scores: Column<'py, f64>,
    truths: Column<'py, f64>,
    offsets: Column<'py, i64>,
) -> PyResult<Made<'py, f64>> {
    let (scores, truths) = (slice("scores", &scores)?, slice("truths", &truths)?);
    let offsets = slice("offsets", &offsets)?;
    made(py, scores.len(), || reward::rank_agreement(Ragged::new(scores, offsets)?, truths))
}

#[pyfunction]
fn implicit<'py>(
    py: Python<'py>,
    logprobs: Column<'py, f64>,
    reference_logprobs: Column<'py, f64>,
    offsets: Option<Column<'py, i64>>,
    beta: f64,
) -> PyResult<Made<'py, f64>> {
    let (own, reference) = (slice("logprobs", &logprobs)?, slice("reference_logprobs", &reference_logprobs)?);
    let offsets = optional("offsets", offsets.as_ref())?;
    made(py, own.len(), || reward::implicit_rewards(own, reference, offsets, beta))
}

#[pyfunction]
fn checklist<'py>(
    py: Python<'py>,
    satisfied: Column<'py, bool>,
    items: usize,
    dependencies: Column<'py, bool>,
    offsets: Column<'py, i64>,
    delay: f64,
) -> PyResult<(Made<'py, f64>, Made<'py, f64>, Made<'py, bool>)> {
    let (satisfied, dependencies) = (slice("satisfied", &satisfied)?, slice("dependencies", &dependencies)?);
    let columns = Checklist { satisfied, items, dependencies, offsets: slice("offsets", &offsets)?, delay };
    let rewards = run(py, satisfied.len(), || reward::checklist(&columns))?;
    Ok((rewards.earned.into_pyarray(py), rewards.backfilled.into_pyarray(py), rewards.eligible.into_pyarray(py)))
}

#[pyfunction]
#[pyo3(signature = (embeddings, width, success, groups, *, radius, members_at_least, at_most, slope))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn success_distance<'py>(
    py: Python<'py>,
    embeddings: Column<'py, f64>,
    width: usize,
    success: Column<'py, bool>,
    groups: Column<'py, u32>,
    radius: f64,
    members_at_least: Whole<u32>,
    at_most: f64,
    slope: f64,
) -> PyResult<Made<'py, f64>> {
    let (embeddings, success) = (slice("embeddings", &embeddings)?, slice("success", &success)?);
    let groups = slice("groups", &groups)?;
    let options =
        ProgressOptions { radius, members_at_least: members_at_least.named("members_at_least")?, at_most, slope };
    made(py, embeddings.len(), || reward::success_distance(embeddings, width, success, groups, &options))
}
