//! Searches for Python.

use agentrl_compute::search::{self, Descent, NONE, Turn, UNSOLVED};
use agentrl_data::forest;
use numpy::{IntoPyArray as _, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::arrays::{Whole, slice};
use crate::batch::Batch;
use crate::enter::held;
use crate::error::to_python;
use crate::forest::Forest;
use crate::fork_safe_lock::Shared;

type Array<'py, T> = Bound<'py, PyArray1<T>>;

/// The turns and states of one group.
#[pyclass(frozen, module = "agentrl_core._core")]
pub(crate) struct SearchTree(Shared<forest::SearchTree>);

/// Return a row, or -1 for `NONE`.
fn row(row: u32) -> i64 {
    if row == NONE { -1 } else { i64::from(row) }
}

impl SearchTree {
    fn with<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut forest::SearchTree) -> agentrl_data::Result<T>,
    ) -> PyResult<T> {
        let mut tree = self.0.attached(py).map_err(to_python)?;
        held(|| work(&mut tree))
    }

    /// Return one value per turn.
    fn turns<'py, T: numpy::Element>(&self, py: Python<'py>, of: impl Fn(&Turn) -> T) -> PyResult<Array<'py, T>> {
        let values: Vec<T> = self.with(py, |tree| Ok(tree.search.turns().iter().map(of).collect()))?;
        Ok(values.into_pyarray(py))
    }

    /// Return one value per state.
    fn states<'py, T: numpy::Element>(
        &self,
        py: Python<'py>,
        of: impl Fn(&search::Search, u32) -> T,
    ) -> PyResult<Array<'py, T>> {
        let values: Vec<T> =
            self.with(py, |tree| Ok((0..tree.search.states() as u32).map(|state| of(&tree.search, state)).collect()))?;
        Ok(values.into_pyarray(py))
    }
}

#[pymethods]
impl SearchTree {
    #[new]
    fn new() -> Self {
        Self(Shared::new("SearchTree", forest::SearchTree::default()))
    }

    #[staticmethod]
    fn of(batch: &Batch, group: Whole<i64>) -> PyResult<Self> {
        let group = group.named("group")?;
        held(|| forest::SearchTree::of(&batch.0, group)).map(|tree| Self(Shared::new("SearchTree", tree)))
    }

    fn follow(&self, py: Python<'_>, forest: &Forest, group: Whole<u32>) -> PyResult<()> {
        let group = group.named("group")?;
        let forest = forest.0.attached(py).map_err(to_python)?;
        self.with(py, |tree| forest.follow(group, tree))
    }

    fn graft(&self, py: Python<'_>, forest: &Forest, trajectory: Whole<i64>, turn: Whole<u32>) -> PyResult<()> {
        let (trajectory, turn) = (trajectory.named("trajectory")?, turn.named("turn")?);
        let forest = forest.0.attached(py).map_err(to_python)?;
        self.with(py, |tree| forest.graft(trajectory, tree, turn))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |tree| Ok(tree.search.turns().len()))
    }

    #[getter]
    fn trajectory<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, i64>> {
        let values: Vec<i64> = self.with(py, |tree| Ok(tree.taken().iter().map(|taken| taken.0).collect()))?;
        Ok(values.into_pyarray(py))
    }

    #[getter]
    fn step<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, u32>> {
        let values: Vec<u32> = self.with(py, |tree| Ok(tree.taken().iter().map(|taken| taken.1).collect()))?;
        Ok(values.into_pyarray(py))
    }

    fn taken(&self, py: Python<'_>, turn: usize) -> PyResult<(i64, u32)> {
        self.with(py, |tree| {
            tree.search.turn(u32::try_from(turn).unwrap_or(NONE))?;
            Ok(tree.taken()[turn])
        })
    }

    #[getter]
    fn parent<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, i64>> {
        self.turns(py, |turn| row(turn.parent))
    }

    #[getter]
    fn before<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, u32>> {
        self.turns(py, |turn| turn.before)
    }

    #[getter]
    fn after<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, u32>> {
        self.turns(py, |turn| turn.after)
    }

    #[getter]
    fn logprob<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, f64>> {
        self.turns(py, |turn| turn.logprob)
    }

    #[getter]
    fn path_logprob<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, f64>> {
        self.turns(py, |turn| turn.path_logprob)
    }

    #[getter]
    fn depth<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, u32>> {
        self.turns(py, |turn| turn.depth)
    }

    #[getter]
    fn visits<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, u32>> {
        self.turns(py, |turn| turn.visits)
    }

    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, f64>> {
        self.turns(py, |turn| turn.total / f64::from(turn.visits))
    }

    #[getter]
    fn best<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, f64>> {
        self.turns(py, |turn| if turn.visits > 0 { turn.best } else { f64::NAN })
    }

    #[getter]
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, u8>> {
        self.states(py, |search, state| search.status(state) as u8)
    }

    #[getter]
    fn distance<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, i64>> {
        let away = |distance| if distance == UNSOLVED { -1 } else { i64::from(distance) };
        self.states(py, |search, state| away(search.distance(state)))
    }

    #[getter]
    fn first<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, i64>> {
        self.states(py, |search, state| row(search.first(state)))
    }

    #[getter]
    fn ended<'py>(&self, py: Python<'py>) -> PyResult<Array<'py, bool>> {
        self.states(py, search::Search::ended)
    }

    fn frontier(&self, py: Python<'_>, count: usize) -> PyResult<Vec<i64>> {
        self.with(py, |tree| Ok(tree.search.frontier(count).into_iter().map(row).collect()))
    }

    fn descend(
        &self,
        py: Python<'_>,
        count: usize,
        width: Whole<u32>,
        depth: Whole<u32>,
        exploration: f64,
    ) -> PyResult<Vec<i64>> {
        let descent = Descent { width: width.named("width")?, depth: depth.named("depth")?, exploration };
        self.with(py, |tree| Ok(tree.search.descend(count, &descent)?.into_iter().map(row).collect()))
    }

    fn under_sampled(&self, py: Python<'_>, count: usize) -> PyResult<Vec<i64>> {
        self.with(py, |tree| Ok(tree.search.under_sampled(count).into_iter().map(row).collect()))
    }

    fn path(&self, py: Python<'_>, turn: Whole<u32>) -> PyResult<Vec<u32>> {
        let turn = turn.named("turn")?;
        self.with(py, |tree| tree.search.path(turn))
    }

    fn seed(&self, py: Python<'_>, turn: Whole<u32>) -> PyResult<Option<i64>> {
        let turn = turn.named("turn")?;
        self.with(py, |tree| tree.seed(turn))
    }

    fn repeated(&self, py: Python<'_>, since: usize) -> PyResult<Vec<u32>> {
        self.with(py, |tree| {
            let turns = tree.search.turns().iter().enumerate().skip(since);
            let again = turns.filter(|&(row, turn)| tree.search.first(turn.after) != row as u32);
            Ok(again.map(|(row, _)| row as u32).collect())
        })
    }

    fn children(&self, py: Python<'_>, turn: i64) -> PyResult<Vec<u32>> {
        self.with(py, |tree| Ok(tree.search.children(u32::try_from(turn).unwrap_or(NONE)).to_vec()))
    }

    fn solution(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.with(py, |tree| Ok(tree.search.solution()))
    }

    fn pairs(&self, py: Python<'_>) -> PyResult<Vec<(u32, u32)>> {
        self.with(py, |tree| Ok(tree.search.pairs()))
    }

    fn best_leaf(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        self.with(py, |tree| Ok(tree.search.best_leaf()))
    }
}

/// Compare two token sequences: edit distance, length of the common suffix, length of the longest common subsequence.
#[pyfunction]
pub(crate) fn likeness(
    first: PyReadonlyArray1<'_, i32>,
    second: PyReadonlyArray1<'_, i32>,
) -> PyResult<(usize, usize, usize)> {
    let (first, second) = (slice("first", &first)?, slice("second", &second)?);
    held(|| {
        let edits = search::edit_distance(first, second);
        Ok((edits, search::common_suffix(first, second), search::common_subsequence(first, second)))
    })
}
