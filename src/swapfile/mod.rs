mod bitmap;
mod memory;
