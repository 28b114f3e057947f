"""Published questions searched again: is what people ran among the recipes, and is the answer as
fast?"""
