//! Sampling options of the stored tokens, and whether their contexts show images. A trainer compares them with its own
//! settings.

use std::collections::BTreeMap;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int32Type};

use super::{Batch, i64s, lists};
use crate::Result;

/// Facts of the stored nodes as columns, one value per node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// Begin of each node's tokens at level `node_token`, and the number of tokens last.
    pub offsets: Vec<i64>,
    /// Softmax temperature; NaN if it is not recorded.
    pub temperature: Vec<f32>,
    /// Nucleus mass; NaN if it is not recorded.
    pub top_p: Vec<f32>,
    /// Number of tokens kept, 0 for all; NaN if it is not recorded.
    pub top_k: Vec<f32>,
    /// 1 if the node, or a node before it on its path, has blobs.
    pub shows_images: Vec<u8>,
}

impl Batch {
    /// Return the sampling options of each node, and whether its path shows images.
    pub fn sampled(&self) -> Result<Sampled> {
        let nodes = self.nodes();
        let sampling = super::array(nodes, "sampling")?.as_struct();
        let floats = |column: usize| sampling.column(column).as_primitive::<Float32Type>();
        let top_k = sampling.column(2).as_primitive::<Int32Type>();
        let mut found = Sampled { offsets: self.layout.node_offsets().to_vec(), ..Sampled::default() };
        for row in 0..nodes.num_rows() {
            let known = |value: f32| if sampling.is_null(row) { f32::NAN } else { value };
            found.temperature.push(known(floats(0).value(row)));
            found.top_p.push(known(floats(1).value(row)));
            found.top_k.push(known(top_k.value(row) as f32));
        }
        found.shows_images = self.shows_images()?;
        Ok(found)
    }

    fn shows_images(&self) -> Result<Vec<u8>> {
        let nodes = self.nodes();
        let (ids, parents, blobs) = (i64s(nodes, "node_id")?, i64s(nodes, "parent_id")?, lists(nodes, "blobs")?);
        let mut shows = vec![0; nodes.num_rows()];
        if blobs.null_count() == blobs.len() {
            return Ok(shows);
        }
        // Parents have smaller ids, so they are visited first.
        let rows: BTreeMap<i64, usize> = ids.values().iter().enumerate().map(|(row, &id)| (id, row)).collect();
        for &row in rows.values() {
            let own = !blobs.is_null(row) && blobs.value_length(row) > 0;
            let above = if parents.is_null(row) { None } else { rows.get(&parents.value(row)) };
            shows[row] = u8::from(own || above.is_some_and(|&above| shows[above] == 1));
        }
        Ok(shows)
    }
}
