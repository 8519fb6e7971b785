"""Other implementations' weights; docs/weights.md."""

from npxl.interop.conversion import convert as convert
from npxl.interop.original import read_original as read_original
from npxl.interop.transfoxl import read_transfoxl as read_transfoxl
from npxl.interop.transfoxl import write_transfoxl as write_transfoxl
