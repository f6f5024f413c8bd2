//! Images of contexts: a node with images is shared whole and with the same images, or not at all.

use agentrl_compute::prefix::common_prefix;

use super::align::{self, Alignment, Rules};
use super::{BlobHash, Group, Place, Prompt};
use crate::schema::Drift;
use crate::{Error, Result};

impl Group {
    /// Return the images of a path, in order.
    pub(super) fn shown(&self, tip: Option<Place>) -> impl Iterator<Item = &BlobHash> {
        self.path(tip).into_iter().flat_map(|(node, _)| &self.nodes[node].content.blobs)
    }

    /// Whether the images of a prompt begin with all images of a path; true if images are not compared.
    pub(super) fn shows_first(&self, tip: Option<Place>, prompt: &Prompt<'_>) -> bool {
        let Some(images) = prompt.images else { return true };
        let mut images = images.iter();
        self.shown(tip).all(|hash| images.next() == Some(hash))
    }

    /// Return the images of a prompt that come after those of the path to `place`. The prompt adds `added` tokens
    /// there.
    pub(super) fn new_images(&self, place: Option<Place>, prompt: &Prompt<'_>, added: usize) -> Result<Vec<BlobHash>> {
        let Some(images) = prompt.images else { return Ok(Vec::new()) };
        let known = self.shown(place).count();
        if known < images.len() && added == 0 {
            return Err(Error::invalid(format!(
                "prompts has placeholders for {known} images, but images has {}; give one placeholder for each image",
                images.len()
            )));
        }
        Ok(images[known..].to_vec())
    }

    /// Return the number of leading tokens that a path and a prompt share, and the place on the path at which they end.
    pub(super) fn shared(&self, tip: Option<Place>, prompt: &Prompt<'_>) -> (usize, Option<Place>) {
        let (mut last, mut images) = (None, prompt.images);
        for place in self.path(tip) {
            let (start, content) = (self.nodes[place.0].start as usize, &self.nodes[place.0].content);
            let mut same = common_prefix(self.used(place), &prompt.rest[start..]);
            if let Some(left) = images
                && !content.blobs.is_empty()
            {
                match left.strip_prefix(content.blobs.as_slice()) {
                    Some(rest) if same == content.tokens.len() => images = Some(rest),
                    _ => same = 0,
                }
            }
            if same > 0 {
                last = Some((place.0, same as u32));
            }
            if same < place.1 as usize {
                return (start + same, last);
            }
        }
        (self.position(tip) as usize, last)
    }

    /// Align a prompt with the tokens of a path. They share the first `at` tokens.
    ///
    /// If the prompt's images are not those of the tokens that it repeats, the drift is a rewrite from the first node
    /// with another image on.
    pub(super) fn align(
        &self,
        path: &[Place],
        tokens: &[i32],
        prompt: &Prompt<'_>,
        at: usize,
        rules: &Rules<'_>,
    ) -> Alignment {
        let Some(images) = prompt.images else {
            return align::align(tokens, self.last_output(path), &prompt.rest, at, rules);
        };
        let same = common_prefix(tokens, &prompt.rest);
        let found = align::align(tokens, self.last_output(path), &prompt.rest, same, rules);
        let end = prompt.len();
        let rewritten = |at| Alignment { drift: Drift::Rewritten, at, replaced: end, repeated: end };
        // Images of nodes that the prompt contains in full, of nodes that it divides, and of nodes that it repeats
        // later.
        let repeated = tokens.len() - (found.repeated - found.replaced);
        let (mut whole, mut divided, mut later) = (Vec::new(), Vec::new(), Vec::new());
        for &place in path {
            let node = &self.nodes[place.0];
            let is_whole = self.position(Some(place)) as usize <= same;
            if is_whole || found.drift == Drift::Retokenised {
                whole.extend(&node.content.blobs);
            } else if (node.start as usize) < same {
                divided.extend(&node.content.blobs);
            } else if node.start as usize >= repeated {
                later.extend(&node.content.blobs);
            }
        }
        if !images.starts_with(&whole) || found.drift == Drift::Clean {
            return rewritten(at);
        }
        let shows = |between: &[BlobHash]| {
            let wanted = [&whole[..], between, &later[..]].concat();
            if same == end { images == wanted } else { images.starts_with(&wanted) }
        };
        if found.drift == Drift::Rewritten || shows(&[]) || shows(&divided) { found } else { rewritten(same) }
    }
}
