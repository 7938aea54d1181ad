#!/bin/sh
exec sh "${0%/*}/../prepare.sh" "Load sales.csv :: len(rows) == 3" "Total by region :: totals['north'] == 40"
