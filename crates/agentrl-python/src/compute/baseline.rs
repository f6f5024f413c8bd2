//! Baselines, and state by key that lasts from batch to batch: plain dicts, which can be stored as JSON.

use agentrl_compute::baseline;
use agentrl_compute::group::Columns;
use numpy::{PyArray1, PyArrayMethods as _};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyList, PyMapping};

use super::columns::{Column, Made, made, optional, run};
use crate::arrays::{Whole, slice};
use crate::error::invalid;

/// Baselines.
#[pymodule(submodule, name = "baseline", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{decayed_beta, ema_mean, running_moments, shrunk_mean};
}

#[pyfunction]
fn shrunk_mean<'py>(
    py: Python<'py>,
    values: Column<'py, f64>,
    groups: Column<'py, u32>,
    prior: Column<'py, f64>,
    variance: f64,
    leave_one_out: bool,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, f64>> {
    let (columns, prior) = (columns("values", &values, &groups, valid.as_ref())?, slice("prior", &prior)?);
    made(py, prior.len(), || baseline::shrunk_mean(&columns, prior, variance, leave_one_out))
}

#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "all options of Python's function")]
fn ema_mean<'py>(
    py: Python<'py>,
    state: &Bound<'py, PyAny>,
    names: Bound<'py, PyList>,
    values: Column<'py, f64>,
    groups: Column<'py, u32>,
    decay: f64,
    initial: f64,
    before: bool,
    valid: Option<Column<'py, bool>>,
) -> PyResult<(Made<'py, f64>, Bound<'py, PyDict>)> {
    let columns = columns("values", &values, &groups, valid.as_ref())?;
    let memory = NamedNumbers::read(state, names, [initial])?;
    let after = run(py, columns.values.len(), || baseline::ema_mean(&columns, decay, &memory.past))?;
    let means = of_rows(py, &columns, if before { &after } else { &memory.past }, |&[b]| b);
    Ok((means, memory.write(&after)?))
}

/// Mean, standard deviation and visits for each row, and the next state.
type Moments<'py> = (Made<'py, f64>, Made<'py, f64>, Made<'py, i64>, Bound<'py, PyDict>);

#[pyfunction]
fn running_moments<'py>(
    py: Python<'py>,
    state: &Bound<'py, PyAny>,
    names: Bound<'py, PyList>,
    values: Column<'py, f64>,
    groups: Column<'py, u32>,
    ddof: Whole<u32>,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Moments<'py>> {
    let (columns, ddof) = (columns("values", &values, &groups, valid.as_ref())?, ddof.named("ddof")?);
    let memory = NamedNumbers::read(state, names, [0.0; 3])?;
    let after = run(py, columns.values.len(), || baseline::running_moments(&columns, ddof, &memory.past))?;
    let visits = columns.groups.iter().map(|&group| after[group as usize][0] as i64);
    Ok((
        of_rows(py, &columns, &after, |after| after[1]),
        of_rows(py, &columns, &after, |after| after[2]),
        PyArray1::from_iter(py, visits),
        memory.write(&after)?,
    ))
}

#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "all options of Python's function")]
fn decayed_beta<'py>(
    py: Python<'py>,
    state: &Bound<'py, PyAny>,
    names: Bound<'py, PyList>,
    successes: Column<'py, f64>,
    groups: Column<'py, u32>,
    decay: &Bound<'py, PyAny>,
    initial: f64,
    valid: Option<Column<'py, bool>>,
) -> PyResult<(Made<'py, f64>, Bound<'py, PyDict>)> {
    let columns = columns("successes", &successes, &groups, valid.as_ref())?;
    let memory = NamedNumbers::read(state, names, [0.0; 2])?;
    let (given, same);
    let decays = if let Ok(array) = decay.cast::<PyArray1<f64>>() {
        given = array.readonly();
        slice("decay", &given)?
    } else {
        same = vec![decay.extract()?; columns.values.len()];
        &same
    };
    let names = memory.names.clone().unbind();
    let name = |group: usize| {
        Python::attach(|py| names.bind(py).get_item(group).map_or_else(|_| group.to_string(), |name| name.to_string()))
    };
    let after = run(py, columns.values.len(), || baseline::decayed_beta(&columns, decays, &memory.past, name))?;
    let rate = |&[won, lost]: &[f64; 2]| if won + lost > 0.0 { won / (won + lost) } else { initial };
    Ok((of_rows(py, &columns, &memory.past, rate), memory.write(&after)?))
}

fn columns<'a>(
    name: &'a str,
    values: &'a Column<'_, f64>,
    groups: &'a Column<'_, u32>,
    valid: Option<&'a Column<'_, bool>>,
) -> PyResult<Columns<'a, f64>> {
    let valid = optional("valid", valid)?;
    Ok(Columns { valid, ..Columns::new(name, slice(name, values)?, slice("groups", groups)?) })
}

/// Return one number of its group for each row.
fn of_rows<'py, const N: usize>(
    py: Python<'py>,
    columns: &Columns<'_, f64>,
    groups: &[[f64; N]],
    number: impl Fn(&[f64; N]) -> f64,
) -> Made<'py, f64> {
    PyArray1::from_iter(py, columns.groups.iter().map(|&group| number(&groups[group as usize])))
}

/// State of the keys of a batch.
struct NamedNumbers<'py, const N: usize> {
    names: Bound<'py, PyList>,
    state: Bound<'py, PyDict>,
    past: Vec<[f64; N]>,
}

impl<'py, const N: usize> NamedNumbers<'py, N> {
    /// Read a number, or a list of numbers, for each name; `new` for a name that is not in the state.
    fn read(state: &Bound<'py, PyAny>, names: Bound<'py, PyList>, new: [f64; N]) -> PyResult<Self> {
        let copy = match state.cast::<PyDict>() {
            Ok(state) => state.copy()?,
            Err(_) if state.is_instance_of::<PyMapping>() => {
                state.py().get_type::<PyDict>().call1((state,))?.cast_into()?
            }
            Err(_) => {
                let shown = shown(state);
                return Err(invalid(format!(
                    "state is {shown}; give what the last call returned, or {{}} at the start"
                )));
            }
        };
        let mut past = Vec::with_capacity(names.len());
        for name in &names {
            past.push(match copy.get_item(&name)? {
                None => new,
                Some(known) => numbers(&known).ok_or_else(|| {
                    let (name, shown) = (shown(&name), shown(&known));
                    invalid(format!("state[{name}] is {shown}; give what the last call returned"))
                })?,
            });
        }
        Ok(Self { names, state: copy, past })
    }

    /// Return the next state.
    fn write(self, after: &[[f64; N]]) -> PyResult<Bound<'py, PyDict>> {
        let py = self.state.py();
        for (name, numbers) in self.names.iter().zip(after) {
            if let Some(wrong) = numbers.iter().find(|number| !number.is_finite()) {
                let name = shown(&name);
                return Err(invalid(format!("state[{name}] would become {wrong}; scale the values")));
            }
            match numbers.as_slice() {
                [number] => self.state.set_item(name, PyFloat::new(py, *number))?,
                numbers => self.state.set_item(name, PyList::new(py, numbers)?)?,
            }
        }
        Ok(self.state)
    }
}

/// Read `N` finite numbers: one by itself, more from a list.
fn numbers<const N: usize>(known: &Bound<'_, PyAny>) -> Option<[f64; N]> {
    let mut numbers = [0.0_f64; N];
    if let [number] = numbers.as_mut_slice() {
        *number = known.extract().ok()?;
    } else {
        let mut items = known.try_iter().ok()?;
        for number in &mut numbers {
            *number = items.next()?.ok()?.extract().ok()?;
        }
        if items.next().is_some() {
            return None;
        }
    }
    numbers.iter().all(|number| number.is_finite()).then_some(numbers)
}

/// Return the first 80 characters of a value's `repr`.
fn shown(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| "unprintable".to_owned(), |text| text.to_string().chars().take(80).collect())
}
