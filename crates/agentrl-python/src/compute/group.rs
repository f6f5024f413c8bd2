//! Statistics of groups, and values relative to them.

use agentrl_compute::group::{
    self, Center, Columns, Extent, Extra, Map, Middle, Moments, Options, Scale, Singleton, Statistics,
};
use agentrl_compute::quantile::Interpolation;
use agentrl_compute::{Error, Float, Result};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use super::columns::run;
use super::keys::with_ids;
use super::{Floats, flags, kernel, optional};
use crate::arrays::{Name, Whole, slice};
use crate::error::to_python;

/// Statistics of groups, and values relative to them.
#[pymodule(submodule, name = "group", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{arg_extreme, extents, finish, log_mean_exp, map, moments, normalise, quantile, statistics, sums};
}

/// Normalise values within groups; `ids` are any integers. All arguments are positional, because looking up twenty
/// names takes longer than normalising the rewards of a batch.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "all options of Python's function")]
fn normalise<'py>(
    py: Python<'py>,
    values: Floats<'py>,
    ids: &Bound<'py, PyAny>,
    center: Name,
    scale: Name,
    median: Name,
    ddof: Whole<u32>,
    eps: f64,
    variance_eps: f64,
    scale_at_least: f64,
    scale_above: f64,
    votes_at_least: Option<Whole<u64>>,
    singleton: Name,
    at_most: Option<f64>,
    weights: Option<PyReadonlyArray1<'py, f64>>,
    units: Option<PyReadonlyArray1<'py, u32>>,
    baseline: Option<PyReadonlyArray1<'py, f64>>,
    divisor: Option<PyReadonlyArray1<'py, f64>>,
    scale_groups: Option<PyReadonlyArray1<'py, u32>>,
    valid: Option<PyReadonlyArray1<'py, bool>>,
    out: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let valid = flags("valid", valid.as_ref())?;
    let (weights, units) = (optional("weights", weights.as_ref())?, optional("voter_ids", units.as_ref())?);
    let ddof = ddof.named("ddof")?;
    let votes_at_least = votes_at_least.map(|count| count.named("votes_at_least")).transpose()?;
    let extra = Extra {
        baseline: optional("baseline", baseline.as_ref())?,
        divisor: optional("divisor", divisor.as_ref())?,
        scale_groups: optional("scale_ids", scale_groups.as_ref())?,
    };
    let options = || {
        Ok(Options {
            center: Center::from_name(&center)?,
            scale: Scale::from_name(&scale)?,
            median: Middle::from_name(&median)?,
            singleton: Singleton::from_name(&singleton)?,
            ddof,
            eps,
            variance_eps,
            scale_at_least,
            scale_above,
            votes_at_least,
            at_most,
        })
    };
    let options = options().map_err(to_python)?;
    with_ids(py, ids, "ids", |ids| {
        kernel!(py, out.as_ref(), 1 * [values], |out| {
            let columns = Columns { weights, units, valid, ..Columns::new("values", values, &[]) };
            group::normalise_by(ids, &columns, &options, extra, out)
        })
    })
}

/// Run work on columns of either float type.
fn with_columns<'py, R: Send>(
    py: Python<'py>,
    values: &Floats<'py>,
    groups: &[u32],
    valid: Option<&[bool]>,
    work: impl Work<R> + Send,
) -> PyResult<R> {
    match values {
        Floats::Single(values) => {
            let values = slice("values", values)?;
            run(py, groups.len(), || work.run(&Columns { valid, ..Columns::new("values", values, groups) }))
        }
        Floats::Double(values) => {
            let values = slice("values", values)?;
            run(py, groups.len(), || work.run(&Columns { valid, ..Columns::new("values", values, groups) }))
        }
    }
}

/// Work that is the same for both float types.
trait Work<R> {
    fn run<T: Float>(self, columns: &Columns<'_, T>) -> Result<R>;
}

/// Count, weight, mean, standard deviation, minimum and maximum of each group.
type StatisticsColumns<'py> = (
    Bound<'py, PyArray1<u64>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<f64>>,
);

fn columns_of<'py>(py: Python<'py>, found: &[Statistics]) -> StatisticsColumns<'py> {
    let column = |of: fn(&Statistics) -> f64| PyArray1::from_iter(py, found.iter().map(of));
    (
        PyArray1::from_iter(py, found.iter().map(|found| found.count)),
        column(|found| found.weight),
        column(|found| found.mean),
        column(|found| found.std),
        column(|found| found.least),
        column(|found| found.most),
    )
}

#[pyfunction]
#[pyo3(signature = (values, groups, *, ddof, weights=None, units=None, valid=None))]
fn statistics<'py>(
    py: Python<'py>,
    values: Floats<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    ddof: Whole<u32>,
    weights: Option<PyReadonlyArray1<'py, f64>>,
    units: Option<PyReadonlyArray1<'py, u32>>,
    valid: Option<PyReadonlyArray1<'py, bool>>,
) -> PyResult<StatisticsColumns<'py>> {
    struct Of<'a>(u32, Option<&'a [f64]>, Option<&'a [u32]>);
    impl Work<Vec<Statistics>> for Of<'_> {
        fn run<T: Float>(self, columns: &Columns<'_, T>) -> Result<Vec<Statistics>> {
            group::statistics(&Columns { weights: self.1, units: self.2, ..*columns }, self.0)
        }
    }
    let (weights, units) = (optional("weights", weights.as_ref())?, optional("voter_ids", units.as_ref())?);
    let valid = flags("valid", valid.as_ref())?;
    let found = with_columns(py, &values, slice("groups", &groups)?, valid, Of(ddof.named("ddof")?, weights, units))?;
    Ok(columns_of(py, &found))
}

#[pyfunction]
#[pyo3(signature = (values, groups, q, *, interpolation="linear".into(), valid=None))]
fn quantile<'py>(
    py: Python<'py>,
    values: Floats<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    q: f64,
    interpolation: Name,
    valid: Option<PyReadonlyArray1<'py, bool>>,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    struct Of(f64, Interpolation);
    impl Work<Vec<f64>> for Of {
        fn run<T: Float>(self, columns: &Columns<'_, T>) -> Result<Vec<f64>> {
            group::quantile(columns, self.0, self.1)
        }
    }
    let how = Of(q, Interpolation::from_name(&interpolation).map_err(to_python)?);
    let found = with_columns(py, &values, slice("groups", &groups)?, flags("valid", valid.as_ref())?, how)?;
    Ok(PyArray1::from_vec(py, found))
}

#[pyfunction]
#[pyo3(signature = (values, groups, temperature, *, valid=None))]
fn log_mean_exp<'py>(
    py: Python<'py>,
    values: Floats<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    temperature: f64,
    valid: Option<PyReadonlyArray1<'py, bool>>,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    struct Of(f64);
    impl Work<Vec<f64>> for Of {
        fn run<T: Float>(self, columns: &Columns<'_, T>) -> Result<Vec<f64>> {
            group::log_mean_exp(columns, self.0)
        }
    }
    let valid = flags("valid", valid.as_ref())?;
    let found = with_columns(py, &values, slice("groups", &groups)?, valid, Of(temperature))?;
    Ok(PyArray1::from_vec(py, found))
}

#[pyfunction]
#[pyo3(signature = (values, groups, largest, *, valid=None))]
fn arg_extreme<'py>(
    py: Python<'py>,
    values: Floats<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    largest: bool,
    valid: Option<PyReadonlyArray1<'py, bool>>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    struct Of(bool);
    impl Work<Vec<Option<u32>>> for Of {
        fn run<T: Float>(self, columns: &Columns<'_, T>) -> Result<Vec<Option<u32>>> {
            group::arg_extreme(columns, self.0)
        }
    }
    let found = with_columns(py, &values, slice("groups", &groups)?, flags("valid", valid.as_ref())?, Of(largest))?;
    Ok(PyArray1::from_iter(py, found.into_iter().map(|row| row.map_or(-1, i64::from))))
}

#[pyfunction]
#[pyo3(signature = (values, groups, how, *, temperature=1.0, eps=0.0, constant=0.0, valid=None))]
#[expect(clippy::too_many_arguments, reason = "options by name")]
fn map<'py>(
    py: Python<'py>,
    values: Floats<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    how: Name,
    temperature: f64,
    eps: f64,
    constant: f64,
    valid: Option<PyReadonlyArray1<'py, bool>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (groups, valid) = (slice("groups", &groups)?, flags("valid", valid.as_ref())?);
    let map = match &*how {
        "rank" => Map::Rank,
        "softmax" => Map::Softmax { temperature },
        "min_max" => Map::MinMax { eps, constant },
        "mean_one" => Map::MeanOne,
        _ => return Err(to_python(Error::internal(format!("there is no map {how:?}")))),
    };
    kernel!(py, [values], |out| group::map(&Columns { valid, ..Columns::new("values", values, groups) }, map, out))
}

#[pyfunction]
fn sums<'py>(
    py: Python<'py>,
    values: Floats<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    count: usize,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    struct Of(usize);
    impl Work<Vec<f64>> for Of {
        fn run<T: Float>(self, columns: &Columns<'_, T>) -> Result<Vec<f64>> {
            group::sums(columns.values, columns.groups, self.0)
        }
    }
    let found = with_columns(py, &values, slice("groups", &groups)?, None, Of(count))?;
    Ok(PyArray1::from_vec(py, found))
}

/// Count, minimum, maximum and largest weight of each group.
type Extents<'py> =
    (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<f64>>);

#[pyfunction]
#[pyo3(signature = (values, groups, count, *, weights=None, valid=None))]
fn extents<'py>(
    py: Python<'py>,
    values: Floats<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    count: Whole<usize>,
    weights: Option<PyReadonlyArray1<'py, f64>>,
    valid: Option<PyReadonlyArray1<'py, bool>>,
) -> PyResult<Extents<'py>> {
    struct Of<'a>(usize, Option<&'a [f64]>);
    impl Work<Vec<Extent>> for Of<'_> {
        fn run<T: Float>(self, columns: &Columns<'_, T>) -> Result<Vec<Extent>> {
            group::extents(&Columns { weights: self.1, ..*columns }, self.0)
        }
    }
    let (valid, weights) = (flags("valid", valid.as_ref())?, optional("weights", weights.as_ref())?);
    let found = with_columns(py, &values, slice("groups", &groups)?, valid, Of(count.named("groups")?, weights))?;
    let column = |of: fn(&Extent) -> f64| PyArray1::from_iter(py, found.iter().map(of));
    Ok((
        PyArray1::from_iter(py, found.iter().map(|found| found.count)),
        column(|found| found.least),
        column(|found| found.most),
        column(|found| found.heaviest),
    ))
}

/// Rebuild the extents that [`extents`] returned and the caller merged.
fn extents_of(
    counts: &PyReadonlyArray1<'_, u64>,
    least: &PyReadonlyArray1<'_, f64>,
    most: &PyReadonlyArray1<'_, f64>,
    heaviest: &PyReadonlyArray1<'_, f64>,
) -> PyResult<Vec<Extent>> {
    let (counts, least) = (slice("counts", counts)?, slice("least", least)?);
    let (most, heaviest) = (slice("most", most)?, slice("heaviest", heaviest)?);
    let columns = counts.iter().zip(least).zip(most.iter().zip(heaviest));
    Ok(columns.map(|((&count, &least), (&most, &heaviest))| Extent { count, least, most, heaviest }).collect())
}

const LIMBS: usize = 4;

#[pyfunction]
#[pyo3(signature = (values, groups, counts, least, most, heaviest, *, weights=None, valid=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn moments<'py>(
    py: Python<'py>,
    values: Floats<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    counts: PyReadonlyArray1<'py, u64>,
    least: PyReadonlyArray1<'py, f64>,
    most: PyReadonlyArray1<'py, f64>,
    heaviest: PyReadonlyArray1<'py, f64>,
    weights: Option<PyReadonlyArray1<'py, f64>>,
    valid: Option<PyReadonlyArray1<'py, bool>>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    struct Of<'a>(Vec<Extent>, Option<&'a [f64]>);
    impl Work<Vec<Moments>> for Of<'_> {
        fn run<T: Float>(self, columns: &Columns<'_, T>) -> Result<Vec<Moments>> {
            group::moments(&Columns { weights: self.1, ..*columns }, &self.0)
        }
    }
    let extents = extents_of(&counts, &least, &most, &heaviest)?;
    let (valid, weights) = (flags("valid", valid.as_ref())?, optional("weights", weights.as_ref())?);
    let found = with_columns(py, &values, slice("groups", &groups)?, valid, Of(extents, weights))?;
    // Limbs of 32 bits in 64-bit integers, so that sums over ranks cannot overflow.
    let limbs = |sum: i128| {
        (0..LIMBS).map(move |limb| {
            let part = (sum >> (32 * limb)) as i64;
            if limb + 1 < LIMBS { part & 0xffff_ffff } else { part }
        })
    };
    let parts = found.iter().flat_map(|found| [found.weight, found.first, found.second]).flat_map(limbs);
    Ok(PyArray1::from_iter(py, parts))
}

#[pyfunction]
fn finish<'py>(
    py: Python<'py>,
    counts: PyReadonlyArray1<'py, u64>,
    least: PyReadonlyArray1<'py, f64>,
    most: PyReadonlyArray1<'py, f64>,
    heaviest: PyReadonlyArray1<'py, f64>,
    moments: PyReadonlyArray1<'py, i64>,
    ddof: Whole<u32>,
) -> PyResult<StatisticsColumns<'py>> {
    let (extents, ddof) = (extents_of(&counts, &least, &most, &heaviest)?, ddof.named("ddof")?);
    let whole = |limbs: &[i64]| limbs.iter().rev().fold(0_i128, |sum, &limb| (sum << 32) + i128::from(limb));
    let found: Vec<Statistics> = extents
        .into_iter()
        .zip(slice("moments", &moments)?.chunks_exact(3 * LIMBS))
        .map(|(extent, parts)| {
            let [weight, first, second] = [0, 1, 2].map(|sum| whole(&parts[sum * LIMBS..][..LIMBS]));
            Statistics::finish(extent, Moments { weight, first, second }, ddof)
        })
        .collect();
    Ok(columns_of(py, &found))
}
