#!/bin/sh
exec sh "${0%/*}/../prepare.sh"
