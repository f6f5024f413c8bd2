//! Plans and packs for Python.

use agentrl_compute::pack::{self, Continuations, RowArrays, RowTree, Stream, room_for_bins, streams};
use agentrl_compute::ragged::Ragged;
use agentrl_data::Error;
use agentrl_data::batch::{self, ImageUses, PackArrays, TokenCredit};
use numpy::{Element, PyArray1, PyArrayMethods as _, PyReadonlyArray1, PyReadwriteArray1, PyUntypedArrayMethods as _};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyBytes, PyDict};

use crate::arrays::{Whole, slice};
use crate::compute::Floats;
use crate::compute::columns::run;
use crate::enter::{held, released};
use crate::error::invalid;

/// Packing without a batch.
#[pymodule(submodule, name = "pack", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{balanced, continuations, pair_streams, tree_layout};
}

/// SHA-256 of each image, position of each use of an image, and the index of its image.
pub(crate) type ImageColumns<'py> = (Vec<Bound<'py, PyBytes>>, Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>);

/// Convert uses of images for Python.
pub(crate) fn image_columns(py: Python<'_>, uses: ImageUses) -> ImageColumns<'_> {
    let hashes = uses.hashes.iter().map(|hash| PyBytes::new(py, hash)).collect();
    (hashes, PyArray1::from_vec(py, uses.places), PyArray1::from_vec(py, uses.images))
}

/// The packs of some draws; the arrays of a pack are made when it is read.
#[pyclass(frozen, module = "agentrl_core._core")]
pub(crate) struct Plan(pub(crate) batch::Plan);

#[pymethods]
impl Plan {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Return one pack with arrays in new memory. Python iterates until an `IndexError`.
    fn __getitem__(&self, py: Python<'_>, index: isize) -> PyResult<PlannedPack> {
        let count = self.0.len();
        let place = if index < 0 { index.checked_add_unsigned(count) } else { Some(index) };
        match place.and_then(|place| usize::try_from(place).ok()).filter(|&place| place < count) {
            Some(place) => self.pack(py, place, None, None, None, None, None),
            None => Err(PyIndexError::new_err(format!(
                "pack {index} does not exist; give an index below the {count} packs of the plan"
            ))),
        }
    }

    /// Return the images in the sequences of one pack: SHA-256 of each image; for each use in order, the sequence and
    /// the index of its image.
    fn images<'py>(&self, py: Python<'py>, index: usize) -> PyResult<ImageColumns<'py>> {
        Ok(image_columns(py, released(py, || self.0.images(index))?))
    }

    /// Return the index at level `node_token` of each token that a pack reads, `int64[rows]`.
    fn row_tokens<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyArray1<i64>>> {
        released(py, || self.0.pack(index)?.row_tokens()).map(|tokens| PyArray1::from_vec(py, tokens))
    }

    /// Return one pack. `take(name, length, dtype)` must return the memory of each array, an array of exactly `length`
    /// values; of a larger buffer return the head.
    ///
    /// The streams of `same` have the value of their column at the first token of each pair. The streams named in
    /// `summed` have the sum over the tokens of each pair of `weights` times columns of `credit`.
    #[pyo3(signature = (index, take=None, *, same=None, summed=None, weights=None, credit=None))]
    #[expect(clippy::too_many_arguments, reason = "options by name")]
    fn pack(
        &self,
        py: Python<'_>,
        index: usize,
        take: Option<&Bound<'_, PyAny>>,
        same: Option<&Bound<'_, PyDict>>,
        summed: Option<Vec<String>>,
        weights: Option<PyReadonlyArray1<'_, f64>>,
        credit: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PlannedPack> {
        let laid_out = released(py, || self.0.pack(index))?;
        let sizes = laid_out.sizes();
        let memory = ArraySource { py, take };
        let (same, credit) = (columns(same)?, columns(credit)?);
        let summed = summed.unwrap_or_default();
        let streams = PyDict::new(py);
        for name in same.iter().map(|(name, _)| name).chain(&summed) {
            if streams.contains(name)? {
                return Err(invalid(format!("the stream {name:?} is requested twice; name each once")));
            }
            streams.set_item(name, memory.array::<f32>(&format!("stream {name}"), sizes.pairs)?)?;
        }
        let pack = PlannedPack {
            layout: self.0.layout().name(),
            input_ids: memory.array("input_ids", sizes.rows)?,
            position_ids: memory.array("position_ids", sizes.rows)?,
            subtree_end: memory.array("subtree_end", sizes.rows)?,
            cu_seqlens: memory.array("cu_seqlens", sizes.runs + 1)?,
            draw: memory.array("draw", sizes.paths)?,
            source_row: memory.array("source_row", sizes.pairs)?,
            target: memory.array("target", sizes.pairs)?,
            token: memory.array("token", sizes.pairs)?,
            node_token: memory.array("node_token", sizes.pairs)?,
            pair_offsets: memory.array("pair_offsets", sizes.pairs + 1)?,
            pair_tokens: memory.array("pair_tokens", sizes.tokens)?,
            streams: streams.unbind(),
        };
        pack.fill(py, &laid_out)?;
        let credit = TokenCredit {
            weights: weights.as_ref().map(|weights| slice("weights", weights)).transpose()?.unwrap_or_default(),
            columns: credit
                .iter()
                .map(|(name, values)| Ok((name.as_str(), slice(name, values)?)))
                .collect::<PyResult<_>>()?,
        };
        let firsts = same.iter().map(|(name, values)| Ok(Stream::First(slice(name, values)?)));
        let sums = summed.iter().map(|name| held(|| credit.stream(name)));
        pack.fill_streams(py, firsts.chain(sums).collect::<PyResult<_>>()?)?;
        Ok(pack)
    }
}

/// Read f32 columns by name.
fn columns<'py>(given: Option<&Bound<'py, PyDict>>) -> PyResult<Vec<(String, PyReadonlyArray1<'py, f32>)>> {
    given.into_iter().flatten().map(|(name, values)| Ok((name.extract()?, values.extract()?))).collect()
}

/// Source of the memory of arrays.
struct ArraySource<'a, 'py> {
    py: Python<'py>,
    take: Option<&'a Bound<'py, PyAny>>,
}

impl ArraySource<'_, '_> {
    fn array<T: Element>(&self, name: &str, length: usize) -> PyResult<Py<PyArray1<T>>> {
        let Some(take) = self.take else { return Ok(PyArray1::zeros(self.py, length, false).unbind()) };
        let array = take.call1((name, length, T::get_dtype(self.py)))?;
        match array.cast_into::<PyArray1<T>>() {
            Ok(array) if array.len() == length => Ok(array.unbind()),
            _ => Err(invalid(format!(
                "take returned another array than {length} values of the given dtype for {name}; return such an array"
            ))),
        }
    }
}

/// Flat arrays of one forward pass.
#[pyclass(frozen, get_all, module = "agentrl_core._core")]
pub(crate) struct PlannedPack {
    layout: &'static str,
    input_ids: Py<PyArray1<i64>>,
    position_ids: Py<PyArray1<i64>>,
    subtree_end: Py<PyArray1<i32>>,
    cu_seqlens: Py<PyArray1<i32>>,
    draw: Py<PyArray1<i64>>,
    source_row: Py<PyArray1<i64>>,
    target: Py<PyArray1<i64>>,
    token: Py<PyArray1<i64>>,
    node_token: Py<PyArray1<i64>>,
    pair_offsets: Py<PyArray1<i64>>,
    pair_tokens: Py<PyArray1<i64>>,
    streams: Py<PyDict>,
}

impl PlannedPack {
    /// Fill the streams, in the order of their names.
    fn fill_streams(&self, py: Python<'_>, sources: Vec<Stream<'_>>) -> PyResult<()> {
        let arrays = self.streams.bind(py).values().iter().map(|array| Ok(array.cast_into::<PyArray1<f32>>()?));
        let arrays = arrays.collect::<PyResult<Vec<_>>>()?;
        let mut outs = arrays.iter().map(|array| writable(array, "stream")).collect::<PyResult<Vec<_>>>()?;
        let filled = sources.into_iter().zip(&mut outs).map(|(source, out)| Ok((source, out.as_slice_mut()?)));
        let filled = filled.collect::<PyResult<Vec<_>>>()?;
        let (offsets, tokens) = (self.pair_offsets.bind(py).readonly(), self.pair_tokens.bind(py).readonly());
        let (offsets, tokens) = (slice("pair_offsets", &offsets)?, slice("pair_tokens", &tokens)?);
        released(py, || streams(filled, offsets, tokens))
    }

    fn fill(&self, py: Python<'_>, laid_out: &batch::LaidOut<'_>) -> PyResult<()> {
        let mut input_ids = writable(self.input_ids.bind(py), "input_ids")?;
        let mut position_ids = writable(self.position_ids.bind(py), "position_ids")?;
        let mut subtree_end = writable(self.subtree_end.bind(py), "subtree_end")?;
        let mut cu_seqlens = writable(self.cu_seqlens.bind(py), "cu_seqlens")?;
        let mut draw = writable(self.draw.bind(py), "draw")?;
        let mut source_row = writable(self.source_row.bind(py), "source_row")?;
        let mut target = writable(self.target.bind(py), "target")?;
        let mut token = writable(self.token.bind(py), "token")?;
        let mut node_token = writable(self.node_token.bind(py), "node_token")?;
        let mut pair_offsets = writable(self.pair_offsets.bind(py), "pair_offsets")?;
        let mut pair_tokens = writable(self.pair_tokens.bind(py), "pair_tokens")?;
        let mut arrays = PackArrays {
            input_ids: input_ids.as_slice_mut()?,
            position_ids: position_ids.as_slice_mut()?,
            subtree_end: subtree_end.as_slice_mut()?,
            cu_seqlens: cu_seqlens.as_slice_mut()?,
            draw: draw.as_slice_mut()?,
            source_row: source_row.as_slice_mut()?,
            target: target.as_slice_mut()?,
            token: token.as_slice_mut()?,
            node_token: node_token.as_slice_mut()?,
            pair_offsets: pair_offsets.as_slice_mut()?,
            pair_tokens: pair_tokens.as_slice_mut()?,
        };
        released(py, || laid_out.fill(&mut arrays))
    }
}

#[pymethods]
impl PlannedPack {
    /// Length of the longest sequence or tree.
    #[getter]
    fn max_seqlen(&self, py: Python<'_>) -> PyResult<usize> {
        let starts = self.cu_seqlens.bind(py).readonly();
        Ok(starts.as_slice()?.windows(2).map(|pair| (pair[1] - pair[0]) as usize).max().unwrap_or(0))
    }
}

fn writable<'py, T: Element>(array: &Bound<'py, PyArray1<T>>, name: &str) -> PyResult<PyReadwriteArray1<'py, T>> {
    array.try_readwrite().map_err(|error| {
        invalid(format!("the array that take returned for {name} cannot be written ({error}); return a writable array"))
    })
}

/// A column of tokens, and the column of pairs to fill from it.
type Filled<'py> = (Floats<'py>, Bound<'py, PyArray1<f32>>);

/// Fill float32 columns of pairs with the sum over the tokens of each pair, in float64, or with the value of its first
/// token.
#[pyfunction]
fn pair_streams(
    py: Python<'_>,
    summed: Vec<Filled<'_>>,
    first: Vec<(PyReadonlyArray1<'_, f32>, Bound<'_, PyArray1<f32>>)>,
    pair_offsets: PyReadonlyArray1<'_, i64>,
    pair_tokens: PyReadonlyArray1<'_, i64>,
) -> PyResult<()> {
    let (offsets, tokens) = (slice("pair_offsets", &pair_offsets)?, slice("pair_tokens", &pair_tokens)?);
    let outs = summed.iter().map(|(_, out)| out).chain(first.iter().map(|(_, out)| out));
    let mut outs = outs.map(|out| writable(out, "stream")).collect::<PyResult<Vec<_>>>()?;
    let sums = summed.iter().map(|(values, _)| match values {
        Floats::Single(values) => slice("values", values).map(Stream::SumSingle),
        Floats::Double(values) => slice("values", values).map(Stream::SumDouble),
    });
    let firsts = first.iter().map(|(values, _)| slice("values", values).map(Stream::First));
    let filled = sums.chain(firsts).zip(&mut outs).map(|(values, out)| Ok((values?, out.as_slice_mut()?)));
    let filled = filled.collect::<PyResult<Vec<_>>>()?;
    released(py, || streams(filled, offsets, tokens))
}

type Whole64 = Py<PyArray1<i64>>;
type Whole32 = Py<PyArray1<i32>>;

/// Input ids, position ids, ends of subtrees, starts of trees, source rows, targets, tokens, offsets of pairs, and
/// tokens of pairs.
type RowPack = (Whole64, Whole64, Whole32, Whole32, Whole64, Whole64, Whole64, Whole64, Whole64);

/// Lay out ragged rows of tokens as prefix trees. `take` is as in `Plan.pack`.
#[pyfunction]
#[pyo3(signature = (tokens, offsets, trained, same, take=None))]
fn tree_layout(
    py: Python<'_>,
    tokens: PyReadonlyArray1<'_, i32>,
    offsets: PyReadonlyArray1<'_, i64>,
    trained: Option<PyReadonlyArray1<'_, bool>>,
    same: Vec<PyReadonlyArray1<'_, f32>>,
    take: Option<&Bound<'_, PyAny>>,
) -> PyResult<RowPack> {
    let (tokens, offsets) = (slice("tokens", &tokens)?, slice("offsets", &offsets)?);
    let trained = trained.as_ref().map(|trained| slice("trained", trained)).transpose()?;
    let same = same.iter().map(|column| slice("same", column)).collect::<PyResult<Vec<_>>>()?;
    let tree = run(py, tokens.len(), || RowTree::new(Ragged::new(tokens, offsets)?, trained, &same))?;
    let memory = ArraySource { py, take };
    let (rows, pairs) = (tree.trie().rows(), tree.pairs());
    let pack: RowPack = (
        memory.array("input_ids", rows)?,
        memory.array("position_ids", rows)?,
        memory.array("subtree_end", rows)?,
        memory.array("cu_seqlens", tree.trie().starts().len())?,
        memory.array("source_row", pairs)?,
        memory.array("target", pairs)?,
        memory.array("token", pairs)?,
        memory.array("pair_offsets", pairs + 1)?,
        memory.array("pair_tokens", tree.trained())?,
    );
    let mut input_ids = writable(pack.0.bind(py), "input_ids")?;
    let mut position_ids = writable(pack.1.bind(py), "position_ids")?;
    let mut subtree_end = writable(pack.2.bind(py), "subtree_end")?;
    let mut cu_seqlens = writable(pack.3.bind(py), "cu_seqlens")?;
    let mut source_row = writable(pack.4.bind(py), "source_row")?;
    let mut target = writable(pack.5.bind(py), "target")?;
    let mut token = writable(pack.6.bind(py), "token")?;
    let mut pair_offsets = writable(pack.7.bind(py), "pair_offsets")?;
    let mut pair_tokens = writable(pack.8.bind(py), "pair_tokens")?;
    let mut arrays = RowArrays {
        input_ids: input_ids.as_slice_mut()?,
        position_ids: position_ids.as_slice_mut()?,
        subtree_end: subtree_end.as_slice_mut()?,
        cu_seqlens: cu_seqlens.as_slice_mut()?,
        source_row: source_row.as_slice_mut()?,
        target: target.as_slice_mut()?,
        token: token.as_slice_mut()?,
        pair_offsets: pair_offsets.as_slice_mut()?,
        pair_tokens: pair_tokens.as_slice_mut()?,
    };
    run(py, tokens.len(), || {
        tree.fill(&mut arrays);
        Ok(())
    })?;
    Ok(pack)
}

/// Assign items to `bins` bins of about equal cost and return the items of each bin, `int64` arrays.
#[pyfunction]
fn balanced(py: Python<'_>, costs: PyReadonlyArray1<'_, i64>, bins: Whole<usize>) -> PyResult<Vec<Py<PyArray1<i64>>>> {
    let (costs, bins) = (slice("costs", &costs)?, bins.named("bins")?);
    let found = released(py, || {
        room_for_bins("bins", bins)?;
        let cost = |(place, &cost): (usize, &i64)| {
            u64::try_from(cost)
                .map_err(|_| Error::invalid(format!("costs[{place}] is {cost}; give whole numbers of at least 0")))
        };
        let costs = costs.iter().enumerate().map(cost).collect::<Result<Vec<_>, _>>()?;
        pack::balanced(&costs, &vec![0; costs.len()], bins, 0)
            .ok_or_else(|| Error::invalid("bins is 0; give the number of bins, from 1"))
    })?;
    Ok(indices(py, &found))
}

/// Assign rows to packs, each row a slice of `text` followed by a tail; return the rows of each pack, `int64` arrays.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "three columns and two ragged ones")]
fn continuations(
    py: Python<'_>,
    text: PyReadonlyArray1<'_, i32>,
    begins: PyReadonlyArray1<'_, i64>,
    ends: PyReadonlyArray1<'_, i64>,
    tails: PyReadonlyArray1<'_, i32>,
    tail_offsets: PyReadonlyArray1<'_, i64>,
    tail_of: PyReadonlyArray1<'_, i64>,
    max_tokens: Whole<usize>,
) -> PyResult<Vec<Py<PyArray1<i64>>>> {
    let (text, begins, ends) = (slice("text", &text)?, slice("begins", &begins)?, slice("ends", &ends)?);
    let (tails, tail_offsets) = (slice("tails", &tails)?, slice("tail_offsets", &tail_offsets)?);
    let (tail_of, max_tokens) = (slice("tail_of", &tail_of)?, max_tokens.named("max_tokens")?);
    let packs = released(py, || {
        Continuations::new(text, begins, ends, Ragged::new(tails, tail_offsets)?, tail_of)?.packs(max_tokens)
    })?;
    Ok(indices(py, &packs))
}

fn indices(py: Python<'_>, lists: &[Vec<usize>]) -> Vec<Py<PyArray1<i64>>> {
    lists.iter().map(|list| PyArray1::from_iter(py, list.iter().map(|&index| index as i64)).unbind()).collect()
}
