//! Plots: dots, lines and bars with axes, and mosaics of squares, as SVG and as PNG.
//!
//! A [`Figure`], a [`BarChart`] or [`Mosaics`] become a [`Drawing`], a list of shapes; that becomes text ([`Drawing::svg`]) or
//! pixels ([`Drawing::png`]). Both look alike: text in PNGs is a built-in bitmap font, so no system fonts are needed.
//!
//! Clouds of dots are kept as one bit a pixel and colour ([`Grid`]): millions of points take as much memory and SVG
//! as fit the picture.
//!
//! Not responsible for what is plotted.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod axis;
mod bars;
mod drawing;
mod figure;
mod mosaic;
mod png;

pub use axis::{Axis, Scale};
pub use bars::{Bar, BarChart, BarGroup};
pub use drawing::{Anchor, Colour, Drawing, PALETTE, Shape};
pub use figure::{Figure, Grid, Layer, Panel};
pub use mosaic::{Key, Mosaic, Mosaics};
