//! Uses of images, in the order in which a model reads them.

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ListArray};

use super::{Batch, lists};
use crate::{Error, Result};

/// Uses of images, in order. Each distinct image is listed once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageUses {
    /// SHA-256 of each distinct image.
    pub hashes: Vec<[u8; 32]>,
    /// Place of each use, `[I]`: in packs the number of the sequence, in contexts an index in
    /// [`Contexts::tokens`](super::Contexts).
    pub places: Vec<i64>,
    /// Index in `hashes` of each use, `[I]`.
    pub images: Vec<i64>,
    known: BTreeMap<[u8; 32], i64>,
}

impl ImageUses {
    /// Add the images of the node in a row of column `blobs`, all at one place.
    pub(super) fn add(&mut self, blobs: &ListArray, row: usize, place: usize) -> Result<()> {
        if blobs.is_null(row) {
            return Ok(());
        }
        for hash in blobs.value(row).as_fixed_size_binary().iter().flatten() {
            let hash =
                <[u8; 32]>::try_from(hash).map_err(|_| Error::internal("the hash of a blob does not have 32 bytes"))?;
            let image = *self.known.entry(hash).or_insert_with(|| {
                self.hashes.push(hash);
                self.hashes.len() as i64 - 1
            });
            self.places.push(place as i64);
            self.images.push(image);
        }
        Ok(())
    }
}

impl Batch {
    /// Return the images of all contexts. The place of an image is the index of its node's first token in
    /// [`Contexts::tokens`](super::Contexts).
    pub fn images_of_contexts(&self) -> Result<ImageUses> {
        let (layout, blobs) = (&self.layout, lists(self.nodes(), "blobs")?);
        let (mut found, mut place) = (ImageUses::default(), 0);
        if blobs.null_count() == blobs.len() {
            return Ok(found);
        }
        for (context, _) in (0..self.num_draws()).flat_map(|draw| layout.contexts(draw)) {
            for node in layout.path(context).into_iter().filter(|node| node.used > 0) {
                found.add(blobs, node.row, place)?;
                place += node.used;
            }
        }
        Ok(found)
    }
}
